// SPDX-License-Identifier: Apache-2.0

// Package quota counts what principals have, refusing what would be one too many. A boxd has one Accounts; every
// reservation is made and given back under its one lock, so none is ever counted half.
package quota

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Day counts executions of the day; the ledger does.
type Day interface {
	// Begin counts one more execution of a principal, unless it has had that many today; most 0 is any number.
	// It returns how many there were before, and how long the day still is.
	Begin(principal string, most int) (ok bool, used int, rest time.Duration)
	// Used is how many there were, and counts none.
	Used(principal string) (used int, rest time.Duration)
}

// Accounts holds all reservations.
type Accounts struct {
	day Day
	now func() time.Time

	mu       sync.Mutex // guards the fields below
	accounts map[string]*account
	tenants  map[string]string // accounts of tenants, by the keys of their sessions
}

// part is an account that something counts for, with its bounds: the principal's, and that of its tenant.
type part struct {
	name string
	*account
	held *policy.EffectivePolicy
}

// parts are those of a principal, and of the tenant that held is about.
func (b *Accounts) parts(principal string, held *policy.EffectivePolicy) []part {
	list := []part{{principal, b.of(principal), held}}
	if tenant := held.Tenants(); tenant != nil {
		name := principal + "\x00" + *held.Of // no principal has such a name
		list = append(list, part{name, b.of(name), tenant})
	}
	return list
}

func (b *Accounts) forgetAll(list []part) {
	for _, p := range list {
		b.forget(p.name)
	}
}

// account is what one principal has.
type account struct {
	sessions   map[string]Size // by their keys
	processes  int
	executions int
	memory     quantity.Size
	cpus       int64 // billionths of a processor: what is added to and taken from it for a year is right at its end

	tokens float64   // executions that may begin now
	filled time.Time // when that was true; zero: never, and the bucket is full
	again  time.Time // when it is full again
}

// Size is what a session reserves.
type Size struct {
	Memory quantity.Size
	CPUs   float64
}

// SizeOf is that of a session with these settings.
func SizeOf(s *policy.Settings) Size { return Size{s.Memory, s.CPUs} }

// NewAccounts returns accounts of nobody. now is the clock that rates go by; it must not jump.
func NewAccounts(day Day, now func() time.Time) *Accounts {
	return &Accounts{day: day, now: now, accounts: map[string]*account{}, tenants: map[string]string{}}
}

// of is the account of a principal.
func (b *Accounts) of(principal string) *account {
	a := b.accounts[principal]
	if a == nil {
		a = &account{sessions: map[string]Size{}}
		b.accounts[principal] = a
	}
	return a
}

// forget drops an account that says nothing any more, or names would be kept for ever.
func (b *Accounts) forget(principal string) {
	if a := b.accounts[principal]; a != nil && len(a.sessions) == 0 && a.processes == 0 && a.executions == 0 && !b.now().Before(a.again) {
		delete(b.accounts, principal)
	}
}

// Session reserves a session of a principal under a key that it has none of.
func (b *Accounts) Session(principal string, held *policy.EffectivePolicy, key string, size Size) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, held)
	defer b.forgetAll(list)
	for _, p := range list {
		if err := p.another(p.held, size); err != nil {
			return err
		}
	}
	b.addAll(list, key, size)
	return nil
}

// addAll counts a session.
func (b *Accounts) addAll(list []part, key string, size Size) {
	for i, p := range list {
		p.add(key, size)
		if i > 0 {
			b.tenants[key] = p.name
		}
	}
}

// another refuses a session that would be one too many.
func (a *account) another(held *policy.EffectivePolicy, size Size) error {
	if most := held.Sessions; most > 0 && len(a.sessions) >= most {
		return full(held, "sessions", fmt.Sprintf("%s %d of %d sessions", whose(held, "have"), len(a.sessions), most), strconv.Itoa(len(a.sessions)), strconv.Itoa(most), "remove one with boxctl rm, or wait for an idle one to end")
	}
	return a.fits(held, Size{}, size)
}

// TrySession says whether Session would be refused now, and reserves nothing.
func (b *Accounts) TrySession(principal string, held *policy.EffectivePolicy, size Size) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, held)
	defer b.forgetAll(list)
	for _, p := range list {
		if err := p.another(p.held, size); err != nil {
			return err
		}
	}
	return nil
}

// TryExecution says whether Execution would be refused now, and takes nothing.
func (b *Accounts) TryExecution(principal string, held *policy.EffectivePolicy) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, held)
	defer b.forgetAll(list)
	for _, p := range list {
		if err := p.oneMore(p.held); err != nil {
			return err
		}
	}
	if err := list[0].inRate(held, b.now()); err != nil {
		return err
	}
	used, rest := b.day.Used(principal)
	return inDay(held, used, rest)
}

func (a *account) add(key string, size Size) {
	a.cpus += billionths(size.CPUs) - billionths(a.sessions[key].CPUs)
	a.sessions[key] = size
	a.memory += size.Memory
}

// billionths of a processor is far less than the kernel divides.
func billionths(cpus float64) int64 { return int64(math.Round(cpus * 1e9)) }

// fits refuses a session that would be of another size than it was where that is too much.
func (a *account) fits(held *policy.EffectivePolicy, was, size Size) error {
	const hint = "ask for less, or remove a box: boxctl ls"
	if most := held.Memory; most > 0 && size.Memory > was.Memory && a.memory-was.Memory+size.Memory > most {
		if size.Memory > most {
			return never(held, "total_memory", "memory", size.Memory.String(), most.String())
		}
		return full(held, "total_memory", fmt.Sprintf("no room for %s of memory: %s %s of %s, %s left", size.Memory.Short(), whose(held, "reserve"), (a.memory-was.Memory).Short(), most.Short(), max(most-(a.memory-was.Memory), 0).Short()), a.memory.String(), most.String(), hint)
	}
	if most := held.CPUs; most > 0 && size.CPUs > was.CPUs && a.cpus-billionths(was.CPUs)+billionths(size.CPUs) > billionths(most) {
		if billionths(size.CPUs) > billionths(most) {
			return never(held, "total_cpus", "cpus", number(size.CPUs), number(most))
		}
		return full(held, "total_cpus", fmt.Sprintf("no room for %s CPUs: %s %s of %s, %s left", number(size.CPUs), whose(held, "reserve"), number(float64(a.cpus-billionths(was.CPUs))/1e9), number(most), number(max(most-float64(a.cpus-billionths(was.CPUs))/1e9, 0))), number(float64(a.cpus)/1e9), number(most), hint)
	}
	return nil
}

// number is a number of processors as people write it.
func number(n float64) string { return strconv.FormatFloat(n, 'g', 6, 64) }

// Resize reserves another size for a session; it is refused where that is more and too much.
func (b *Accounts) Resize(principal string, held *policy.EffectivePolicy, key string, size Size) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, held)
	defer b.forgetAll(list)
	was, ok := list[0].sessions[key]
	if !ok {
		return nil // it has ended meanwhile
	}
	for _, p := range list {
		if err := p.fits(p.held, was, size); err != nil {
			return err
		}
	}
	for _, p := range list {
		if has, ok := p.sessions[key]; ok {
			p.memory -= has.Memory
			p.add(key, size)
		}
	}
	return nil
}

// Restore counts a session that is there already, whatever anybody may have.
func (b *Accounts) Restore(principal string, held *policy.EffectivePolicy, key string, size Size) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if list := b.parts(principal, held); list[0].sessions[key] == (Size{}) {
		b.addAll(list, key, size)
	}
}

// Release gives a session back; one that is not reserved is of no matter.
func (b *Accounts) Release(principal, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range []string{principal, b.tenants[key]} {
		if name == "" {
			continue
		}
		a := b.of(name)
		if was, ok := a.sessions[key]; ok {
			delete(a.sessions, key)
			a.memory -= was.Memory
			a.cpus -= billionths(was.CPUs)
		}
		b.forget(name)
	}
	delete(b.tenants, key)
}

// Execution reserves an execution that begins now, of the number under way, of the rate and of the day. What it
// returns gives back the first, once.
func (b *Accounts) Execution(principal string, held *policy.EffectivePolicy) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, held)
	defer b.forgetAll(list)
	for _, p := range list {
		if err := p.oneMore(p.held); err != nil {
			return nil, err
		}
	}
	if err := b.begin(principal, list[0].account, held); err != nil {
		return nil, err
	}
	return b.count(list, func(a *account, n int) { a.executions += n }), nil
}

// Process does the same for a process that stays: its start is an execution of the rate and of the day.
func (b *Accounts) Process(principal string, held *policy.EffectivePolicy) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, held)
	defer b.forgetAll(list)
	for _, p := range list {
		if most := p.held.Processes; most > 0 && p.processes >= most {
			return nil, full(p.held, "processes", "processes", strconv.Itoa(p.processes), strconv.Itoa(most), "stop one of them")
		}
	}
	if err := b.begin(principal, list[0].account, held); err != nil {
		return nil, err
	}
	return b.count(list, func(a *account, n int) { a.processes += n }), nil
}

// Running counts what runs already, whatever anybody may have. What it returns gives it back, once.
func (b *Accounts) Running(principal string, held *policy.EffectivePolicy, process bool) (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count(b.parts(principal, held), func(a *account, n int) {
		if process {
			a.processes += n
		} else {
			a.executions += n
		}
	})
}

// count adds one to each account. What it returns takes it away, once.
func (b *Accounts) count(list []part, add func(a *account, n int)) (release func()) {
	for _, p := range list {
		add(p.account, 1)
	}
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, p := range list {
			add(b.of(p.name), -1)
			b.forget(p.name)
		}
	})
}

// oneMore refuses an execution that would be one too many at a time.
func (a *account) oneMore(held *policy.EffectivePolicy) error {
	if most := held.Executions; most > 0 && a.executions >= most {
		return full(held, "executions", fmt.Sprintf("%s %d of %d executions running", whose(held, "have"), a.executions, most), strconv.Itoa(a.executions), strconv.Itoa(most), "wait for one of them to end")
	}
	return nil
}

// begin takes an execution from the rate and from the day, or neither.
func (b *Accounts) begin(principal string, a *account, held *policy.EffectivePolicy) error {
	now := b.now()
	if err := a.inRate(held, now); err != nil {
		return err
	}
	if ok, used, rest := b.day.Begin(principal, held.PerDay); !ok {
		return inDay(held, used, rest)
	}
	if held.PerMinute > 0 {
		a.tokens--
		a.again = now.Add(time.Duration((burst(held) - a.tokens) / rate(held)))
	}
	return nil
}

// inRate refuses an execution that comes too fast.
func (a *account) inRate(held *policy.EffectivePolicy, now time.Time) error {
	wait := a.fill(held, now)
	if wait == 0 {
		return nil
	}
	most := strconv.Itoa(held.PerMinute)
	err := full(held, "executions_per_minute", "too many executions: "+most+" a minute are allowed", most, most, fmt.Sprintf("try again in %v", quantity.Duration(wait.Round(time.Millisecond))))
	err.Denial.After = wait
	return err
}

// inDay refuses an execution where there have been as many today as there may be.
func inDay(held *policy.EffectivePolicy, used int, rest time.Duration) error {
	if held.PerDay == 0 || used < held.PerDay {
		return nil
	}
	err := full(held, "executions_per_day", fmt.Sprintf("%s %d of %d executions today", whose(held, "have"), used, held.PerDay), strconv.Itoa(used), strconv.Itoa(held.PerDay), "try again after midnight UTC")
	err.Denial.After = rest
	return err
}

// fill puts into the bucket what the time since has brought, and returns how long it takes until there is one.
func (a *account) fill(held *policy.EffectivePolicy, now time.Time) time.Duration {
	if held.PerMinute == 0 {
		a.filled, a.again = time.Time{}, time.Time{}
		return 0
	}
	rate, most := rate(held), burst(held)
	if a.filled.IsZero() {
		a.tokens = most
	} else if since := now.Sub(a.filled); since > 0 {
		a.tokens += float64(since) * rate
	}
	a.tokens, a.filled = min(a.tokens, most), now
	if a.tokens >= 1 {
		return 0
	}
	return time.Duration((1-a.tokens)/rate) + 1
}

// rate is executions a nanosecond.
func rate(held *policy.EffectivePolicy) float64 {
	return float64(held.PerMinute) / float64(time.Minute)
}

func burst(held *policy.EffectivePolicy) float64 { return float64(cmp.Or(held.Burst, held.PerMinute)) }

// whose begins the sentence on what has used a limit up: of a principal, or of one of the tenants it serves.
func whose(held *policy.EffectivePolicy, verb string) string {
	switch {
	case held.Of != nil:
		return "the boxes of this tenant " + verb
	case verb == "have":
		return "you have"
	}
	return "your boxes " + verb
}

// never refuses what no end of another session makes room for, so that nobody waits for it.
func never(held *policy.EffectivePolicy, key, field, value, allowed string) *fault.Error {
	rule := held.Rule(key)
	return fault.Field(field, value, "at most "+allowed).Of(fault.Denied).WithText("%s = %s: all your boxes together may have %s (%s)", field, value, allowed, rule).WithHint("ask for less").
		By(fault.Denial{Layer: fault.LayerQuota, Rule: rule, Allowed: allowed, Setting: "a larger " + rule})
}

// full is the refusal of one too many, or of more than is left.
func full(held *policy.EffectivePolicy, key, words, used, allowed, hint string) *fault.Error {
	rule := held.Rule(key)
	return fault.Errorf(fault.Exhausted, "%s (%s)", words, rule).WithHint("%s", hint).
		By(fault.Denial{Layer: fault.LayerQuota, Rule: rule, Used: used, Allowed: allowed, Setting: "a larger " + rule})
}

// Standing is what a principal has now.
type Standing struct {
	Sessions, Processes, Executions int
	Memory                          quantity.Size
	CPUs                            float64
}

// Standing tells what a principal has now.
func (b *Accounts) Standing(principal string) Standing {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[principal]
	if a == nil {
		return Standing{}
	}
	return Standing{len(a.sessions), a.processes, a.executions, a.memory, float64(a.cpus) / 1e9}
}
