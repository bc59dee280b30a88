// SPDX-License-Identifier: Apache-2.0

// Package soak_test runs clients of several users with random work, while boxd is reconfigured, stopped or killed; then it checks
// all counts. With SOAK=1 it runs for about 20 minutes.
package soak_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Sizes of a soak. Its duration depends on the host.
const (
	usual        = 4   // rounds
	long         = 240 // with SOAK=1
	disturbedOps = 30  // operations of each caller in a round while boxd is disturbed
	calm         = 10  // and while it is not killed
)

// rounds returns the number of rounds; SOAK_ROUNDS sets another one.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("SOAK_ROUNDS")); err == nil {
		return n
	}
	if os.Getenv("SOAK") != "" {
		return long
	}
	return usual
}

// seed returns a random number, or that of an earlier run from SOAK_SEED. The operations are then the same; their interleaving is not.
func seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("SOAK_SEED"), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
}

// base is in every configuration here.
const base = boxtest.Kept + `
[queue]
wait = "1m"
length = 1000
[audit]
max_size = "1MiB"
max_files = 1000
[profiles.cold]
`

// The callers: two for each of two users. Of the others, one has a policy and one is root.
func users() []uint32 { return []uint32{4242, 4242, 4243, 4243, 4245, 0} }

// soak is one run.
type soak struct {
	t       *testing.T
	d       *boxtest.Daemon
	rng     *rand.Rand
	plain   string // the configuration at the beginning and the end
	callers []*caller
	lives   atomic.Int64 // twice the number of the boxd that serves; one more while there is none, or possibly the next
	counts  map[string]int
	checked int // number of books that have been checked

	mu    sync.Mutex
	asked map[string]int // answered calls that must have a record, by id
	deeds []callEffect
	books []ledgerCopy // what each boxd has left, in order
}

func (s *soak) servedFrom() int { return int(s.lives.Load() / 2) }
func (s *soak) servedTo() int   { return int((s.lives.Load() + 1) / 2) }

func (s *soak) note(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[id]++
}

func (s *soak) noteEffect(d callEffect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deeds = append(s.deeds, d)
}

// configuration returns a random configuration.
func (s *soak) configuration() string {
	n := func(from, to int) int { return from + s.rng.IntN(to-from+1) }
	return s.plain + fmt.Sprintf(`
[sessions]
max = %d
max_per_owner = %d
[exec]
max_per_session = %d
[processes]
max = %d
[usage]
keep_days = %d
[profiles.default]
warm = %d
pids = %d
[policy.ci]
principals = ["uid:4245"]
sessions = %d
processes = %d
executions = %d
`, n(9, 24), n(3, 9), n(1, 4), n(1, 5), n(100, 400), n(0, 2), n(100, 104), n(1, 4), n(1, 5), n(1, 3))
}

// wrong returns an invalid configuration.
func (s *soak) wrong() string {
	text := []string{"[sessions]\nmax = \"many\"\n", "[nonsense]\nx = 1\n", "[sessions\n", "[sessions]\nmax = 0\nmax = 1\n", "[policy.ci]\nprincipals = [\"uid:4245\"]\nsessions = -1\n"}
	return s.plain + text[s.rng.IntN(len(text))]
}

func (s *soak) configure(text string) {
	s.t.Helper()
	if err := os.WriteFile(s.d.Config, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *soak) hup() {
	s.t.Helper()
	if err := syscall.Kill(s.d.PID(), syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
}

var (
	taken   = regexp.MustCompile(`configuration read again`)
	refused = regexp.MustCompile(`the previous one stays in force`)
)

// reload applies a configuration, and waits until the log has the result.
func (s *soak) reload(text string, want *regexp.Regexp) {
	s.t.Helper()
	log := filepath.Join(s.d.Dir, "log")
	info, err := os.Stat(log)
	if err != nil {
		s.t.Fatal(err)
	}
	s.configure(text)
	s.hup()
	boxtest.Eventually(s.t, "the log says "+want.String(), func() bool {
		text, err := os.ReadFile(log)
		return err == nil && want.Match(text[info.Size():])
	})
}

// end ends this boxd with end, records its ledger, and starts the next.
func (s *soak) end(end func(*boxtest.Daemon), inOrder bool) {
	s.t.Helper()
	s.lives.Add(1)
	end(s.d)
	b := s.read()
	b.inOrder = inOrder
	s.books = append(s.books, b)
	s.d.Restart()
	s.lives.Add(1)
}

func (s *soak) kill() { s.end((*boxtest.Daemon).Kill, false) }
func (s *soak) stop() { s.end((*boxtest.Daemon).Stop, true) }

// disturb does to boxd what operators and hosts do.
func (s *soak) disturb() {
	what := "reload"
	switch n := s.rng.IntN(20); {
	case n < 9:
		what = "kill"
		s.kill()
	case n < 11:
		what = "stop"
		s.stop()
	case n < 13:
		what = "kill in a reload"
		s.configure(s.configuration())
		s.hup()
		s.kill()
	case n < 15:
		what = "bad reload"
		before, err := os.ReadFile(s.d.Config)
		if err != nil {
			s.t.Fatal(err)
		}
		s.reload(s.wrong(), refused)
		s.configure(string(before))
	default:
		s.reload(s.configuration(), taken)
	}
	s.counts[what]++
}

// round has every caller do each operations, and calls between repeatedly meanwhile.
func (s *soak) round(each int, between func()) {
	var wg sync.WaitGroup
	s.t.Cleanup(wg.Wait) // the test may end early, and boxd with it
	done := make(chan struct{}, each*len(s.callers))
	for _, c := range s.callers {
		wg.Go(func() {
			for range each {
				if s.t.Failed() {
					return
				}
				c.work()
				done <- struct{}{}
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	for {
		for range 2 + s.rng.IntN(len(s.callers)*4) {
			if _, more := <-done; !more {
				return
			}
		}
		<-time.After(time.Duration(s.rng.IntN(20)) * time.Millisecond)
		between()
	}
}

func start(t *testing.T) *soak {
	d := boxtest.Start(t, base)
	n := seed()
	t.Logf("SOAK_SEED=%d SOAK_ROUNDS=%d", n, rounds())
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{t: t, d: d, checked: 1, rng: rand.New(rand.NewPCG(n, 0)), plain: string(text), asked: map[string]int{}, counts: map[string]int{}}
	for i, uid := range users() {
		s.callers = append(s.callers, newCaller(s, uid, "c"+strconv.Itoa(i), rand.New(rand.NewPCG(n, uint64(i+1)))))
	}
	return s
}

// After all of that every count adds up: nothing is lost or duplicated, and nothing is left.
func TestASoakLosesAndLeavesNothing(t *testing.T) {
	s := start(t)
	s.d.Warm()
	before := s.d.Look()
	s.stop() // to have the usage so far on disk
	for range rounds() {
		s.round(disturbedOps, s.disturb)
		s.quiet()
		s.exactly(func() {
			s.round(calm, func() { s.reload(s.configuration(), taken) })
		})
		s.quiet()
		if s.rng.IntN(2) == 0 { // while no caller is active
			s.kill()
			s.quiet()
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	for _, c := range s.callers {
		for id := range c.own {
			c.remove(id)
		}
	}
	s.stop()
	s.quiet()
	s.reload(s.plain, taken)
	boxtest.Eventually(t, "no preforked box is left", func() bool {
		st, err := s.d.Status(t.Context())
		return err == nil && len(st.Warm) == 0 && st.Sessions == 0
	})
	s.noLeaks()
	s.recorded()
	s.d.NothingLeft(before)
	t.Logf("calls answered %d, boxd %v", len(s.asked), s.counts)
}
