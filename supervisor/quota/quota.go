// SPDX-License-Identifier: Apache-2.0

// Package quota counts what principals use, refusing what would exceed their limits. A boxd has one Accounts; every
// reservation is made and released under its one lock, so none is ever counted in part.
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

// Day counts executions per day; the ledger implements it.
type Day interface {
	// Begin counts one more execution of a principal, unless it has reached most today; 0 is any number. It returns how many
	// there were before, and how much of the day is left.
	Begin(principal string, limit int) (ok bool, used int, untilReset time.Duration)
	// Used returns how many there were, and counts none.
	Used(principal string) (used int, untilReset time.Duration)
}

// Accounts holds all reservations.
type Accounts struct {
	day Day
	now func() time.Time

	mu       sync.Mutex // guards the fields below
	accounts map[string]*account
	tenants  map[string]string // accounts of tenants, by session keys
}

// part is one account to charge, with its limits: the principal's, or its tenant's.
type part struct {
	name string
	*account
	effective *policy.EffectivePolicy
}

// parts returns the accounts of a principal, and of its tenant in effective.
func (b *Accounts) parts(principal string, effective *policy.EffectivePolicy) []part {
	list := []part{{principal, b.of(principal), effective}}
	if tenant := effective.Tenants(); tenant != nil {
		name := principal + "\x00" + *effective.Of // no principal has such a name
		list = append(list, part{name, b.of(name), tenant})
	}
	return list
}

func (b *Accounts) forgetAll(list []part) {
	for _, p := range list {
		b.forget(p.name)
	}
}

// account is what one principal has reserved.
type account struct {
	sessions   map[string]Size // by their keys
	processes  int
	executions int
	memory     quantity.Size
	cpus       int64 // billionths of a CPU: integers stay exact however often they are added and subtracted

	tokens float64   // executions that may begin now
	filled time.Time // when tokens was computed; zero: never, and the bucket is full
	again  time.Time // when it is full again
}

// Size is what a session reserves.
type Size struct {
	Memory quantity.Size
	CPUs   float64
}

// SizeOf returns the size of a session with these settings.
func SizeOf(s *policy.Settings) Size { return Size{s.Memory, s.CPUs} }

// NewAccounts returns empty accounts. now is the clock for rates; it must not jump.
func NewAccounts(day Day, now func() time.Time) *Accounts {
	return &Accounts{day: day, now: now, accounts: map[string]*account{}, tenants: map[string]string{}}
}

// of returns the account of a principal.
func (b *Accounts) of(principal string) *account {
	a := b.accounts[principal]
	if a == nil {
		a = &account{sessions: map[string]Size{}}
		b.accounts[principal] = a
	}
	return a
}

// forget drops an account without content, so that names are not kept for ever.
func (b *Accounts) forget(principal string) {
	if a := b.accounts[principal]; a != nil && len(a.sessions) == 0 && a.processes == 0 && a.executions == 0 && !b.now().Before(a.again) {
		delete(b.accounts, principal)
	}
}

// Session reserves a session of a principal under a new key.
func (b *Accounts) Session(principal string, effective *policy.EffectivePolicy, key string, size Size) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, effective)
	defer b.forgetAll(list)
	for _, p := range list {
		if err := p.another(p.effective, size); err != nil {
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

// another refuses a session beyond the limit.
func (a *account) another(effective *policy.EffectivePolicy, size Size) error {
	if limit := effective.Sessions; limit > 0 && len(a.sessions) >= limit {
		return full(effective, "sessions", fmt.Sprintf("%s %d of %d sessions", subject(effective, "have"), len(a.sessions), limit), strconv.Itoa(len(a.sessions)), strconv.Itoa(limit), "remove one with boxctl rm, or wait for an idle one to end")
	}
	return a.fits(effective, Size{}, size)
}

// TrySession returns the error that Session would return now, and reserves nothing.
func (b *Accounts) TrySession(principal string, effective *policy.EffectivePolicy, size Size) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, effective)
	defer b.forgetAll(list)
	for _, p := range list {
		if err := p.another(p.effective, size); err != nil {
			return err
		}
	}
	return nil
}

// TryExecution returns the error that Execution would return now, and takes nothing.
func (b *Accounts) TryExecution(principal string, effective *policy.EffectivePolicy) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, effective)
	defer b.forgetAll(list)
	for _, p := range list {
		if err := p.oneMore(p.effective); err != nil {
			return err
		}
	}
	if err := list[0].inRate(effective, b.now()); err != nil {
		return err
	}
	used, untilReset := b.day.Used(principal)
	return inDay(effective, used, untilReset)
}

func (a *account) add(key string, size Size) {
	a.cpus += billionths(size.CPUs) - billionths(a.sessions[key].CPUs)
	a.sessions[key] = size
	a.memory += size.Memory
}

// billionths converts CPUs; it is much finer than what the kernel can divide.
func billionths(cpus float64) int64 { return int64(math.Round(cpus * 1e9)) }

// fits refuses a change of a session's size if it would exceed the limits.
func (a *account) fits(effective *policy.EffectivePolicy, was, size Size) error {
	const hint = "ask for less, or remove a box: boxctl ls"
	if limit := effective.Memory; limit > 0 && size.Memory > was.Memory && a.memory-was.Memory+size.Memory > limit {
		if size.Memory > limit {
			return never(effective, "total_memory", "memory", size.Memory.String(), limit.String())
		}
		return full(effective, "total_memory", fmt.Sprintf("no room for %s of memory: %s %s of %s, %s left", size.Memory.Short(), subject(effective, "reserve"), (a.memory-was.Memory).Short(), limit.Short(), max(limit-(a.memory-was.Memory), 0).Short()), a.memory.String(), limit.String(), hint)
	}
	if limit := effective.CPUs; limit > 0 && size.CPUs > was.CPUs && a.cpus-billionths(was.CPUs)+billionths(size.CPUs) > billionths(limit) {
		if billionths(size.CPUs) > billionths(limit) {
			return never(effective, "total_cpus", "cpus", number(size.CPUs), number(limit))
		}
		return full(effective, "total_cpus", fmt.Sprintf("no room for %s CPUs: %s %s of %s, %s left", number(size.CPUs), subject(effective, "reserve"), number(float64(a.cpus-billionths(was.CPUs))/1e9), number(limit), number(max(limit-float64(a.cpus-billionths(was.CPUs))/1e9, 0))), number(float64(a.cpus)/1e9), number(limit), hint)
	}
	return nil
}

// number formats a number of CPUs for people.
func number(n float64) string { return strconv.FormatFloat(n, 'g', 6, 64) }

// Resize reserves another size for a session; only an increase can be refused.
func (b *Accounts) Resize(principal string, effective *policy.EffectivePolicy, key string, size Size) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, effective)
	defer b.forgetAll(list)
	was, ok := list[0].sessions[key]
	if !ok {
		return nil // it has ended
	}
	for _, p := range list {
		if err := p.fits(p.effective, was, size); err != nil {
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

// Restore counts a session that already exists, whatever the limits.
func (b *Accounts) Restore(principal string, effective *policy.EffectivePolicy, key string, size Size) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if list := b.parts(principal, effective); list[0].sessions[key] == (Size{}) {
		b.addAll(list, key, size)
	}
}

// Release releases a session; one that is not reserved is ignored.
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

// Execution reserves an execution that begins now: it counts for the running ones, the rate and the day. release gives back the
// first, once.
func (b *Accounts) Execution(principal string, effective *policy.EffectivePolicy) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, effective)
	defer b.forgetAll(list)
	for _, p := range list {
		if err := p.oneMore(p.effective); err != nil {
			return nil, err
		}
	}
	if err := b.begin(principal, list[0].account, effective); err != nil {
		return nil, err
	}
	return b.count(list, func(a *account, n int) { a.executions += n }), nil
}

// Process does the same for a managed process: its start is an execution for the rate and the day.
func (b *Accounts) Process(principal string, effective *policy.EffectivePolicy) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.parts(principal, effective)
	defer b.forgetAll(list)
	for _, p := range list {
		if limit := p.effective.Processes; limit > 0 && p.processes >= limit {
			return nil, full(p.effective, "processes", fmt.Sprintf("%s %d of %d processes", subject(p.effective, "have"), p.processes, limit), strconv.Itoa(p.processes), strconv.Itoa(limit), "stop one of them")
		}
	}
	if err := b.begin(principal, list[0].account, effective); err != nil {
		return nil, err
	}
	return b.count(list, func(a *account, n int) { a.processes += n }), nil
}

// Running counts what already runs, whatever the limits. release gives it back, once.
func (b *Accounts) Running(principal string, effective *policy.EffectivePolicy, process bool) (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count(b.parts(principal, effective), func(a *account, n int) {
		if process {
			a.processes += n
		} else {
			a.executions += n
		}
	})
}

// count adds one to each account. release subtracts it, once.
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

// oneMore refuses an execution beyond the limit of concurrent ones.
func (a *account) oneMore(effective *policy.EffectivePolicy) error {
	if limit := effective.Executions; limit > 0 && a.executions >= limit {
		return full(effective, "executions", fmt.Sprintf("%s %d of %d executions running", subject(effective, "have"), a.executions, limit), strconv.Itoa(a.executions), strconv.Itoa(limit), "wait for one of them to end")
	}
	return nil
}

// begin takes an execution from the rate and from the day, or from neither.
func (b *Accounts) begin(principal string, a *account, effective *policy.EffectivePolicy) error {
	now := b.now()
	if err := a.inRate(effective, now); err != nil {
		return err
	}
	if ok, used, untilReset := b.day.Begin(principal, effective.PerDay); !ok {
		return inDay(effective, used, untilReset)
	}
	if effective.PerMinute > 0 {
		a.tokens--
		a.again = now.Add(time.Duration((burst(effective) - a.tokens) / rate(effective)))
	}
	return nil
}

// inRate refuses an execution that exceeds the rate.
func (a *account) inRate(effective *policy.EffectivePolicy, now time.Time) error {
	wait := a.fill(effective, now)
	if wait == 0 {
		return nil
	}
	limit := strconv.Itoa(effective.PerMinute)
	err := full(effective, "executions_per_minute", "too many executions: "+limit+" a minute are allowed", limit, limit, fmt.Sprintf("try again in %v", quantity.Duration(wait.Round(time.Millisecond))))
	err.Denial.After = wait
	return err
}

// inDay refuses an execution beyond the daily limit.
func inDay(effective *policy.EffectivePolicy, used int, untilReset time.Duration) error {
	if effective.PerDay == 0 || used < effective.PerDay {
		return nil
	}
	err := full(effective, "executions_per_day", fmt.Sprintf("%s %d of %d executions today", subject(effective, "have"), used, effective.PerDay), strconv.Itoa(used), strconv.Itoa(effective.PerDay), "try again after midnight UTC")
	err.Denial.After = untilReset
	return err
}

// fill refills the token bucket for the elapsed time, and returns how long until it has a token.
func (a *account) fill(effective *policy.EffectivePolicy, now time.Time) time.Duration {
	if effective.PerMinute == 0 {
		a.filled, a.again = time.Time{}, time.Time{}
		return 0
	}
	rate, limit := rate(effective), burst(effective)
	if a.filled.IsZero() {
		a.tokens = limit
	} else if since := now.Sub(a.filled); since > 0 {
		a.tokens += float64(since) * rate
	}
	a.tokens, a.filled = min(a.tokens, limit), now
	if a.tokens >= 1 {
		return 0
	}
	return time.Duration((1-a.tokens)/rate) + 1
}

// rate is in executions per nanosecond.
func rate(effective *policy.EffectivePolicy) float64 {
	return float64(effective.PerMinute) / float64(time.Minute)
}

func burst(e *policy.EffectivePolicy) float64 { return float64(cmp.Or(e.Burst, e.PerMinute)) }

// subject begins the sentence that says who has used up a limit: a principal, or one of its tenants.
func subject(effective *policy.EffectivePolicy, verb string) string {
	switch {
	case effective.Of != nil:
		return "the boxes of this tenant " + verb
	case verb == "have":
		return "you have"
	}
	return "your boxes " + verb
}

// never refuses what would not fit even if other sessions ended, so that no caller waits for it.
func never(effective *policy.EffectivePolicy, key, field, value, allowed string) *fault.Error {
	rule := effective.Rule(key)
	boxes := "all your boxes"
	if effective.Of != nil {
		boxes = "all boxes of this tenant"
	}
	return fault.Field(field, value, "at most "+allowed).Of(fault.Denied).WithText("%s = %s: %s together may have %s (%s)", field, value, boxes, allowed, rule).WithHint("ask for less").
		By(fault.Denial{Layer: fault.LayerQuota, Rule: rule, Allowed: allowed, Setting: "a larger " + rule})
}

// full returns the refusal of a request beyond a limit.
func full(effective *policy.EffectivePolicy, key, words, used, allowed, hint string) *fault.Error {
	rule := effective.Rule(key)
	return fault.Errorf(fault.Exhausted, "%s (%s)", words, rule).WithHint("%s", hint).
		By(fault.Denial{Layer: fault.LayerQuota, Rule: rule, Used: used, Allowed: allowed, Setting: "a larger " + rule})
}

// Standing is what a principal uses now.
type Standing struct {
	Sessions, Processes, Executions int
	Memory                          quantity.Size
	CPUs                            float64
}

// Standing returns what a principal uses now.
func (b *Accounts) Standing(principal string) Standing {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[principal]
	if a == nil {
		return Standing{}
	}
	return Standing{len(a.sessions), a.processes, a.executions, a.memory, float64(a.cpus) / 1e9}
}
