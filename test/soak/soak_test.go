// SPDX-License-Identifier: Apache-2.0

// Package soak_test has clients of several users do what clients do, by chance, while boxd is given other
// configurations, stopped and killed; and then counts. SOAK=1 lets it go on for about 20 minutes.
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

// Sizes of a soak. How long it takes is for the host to say.
const (
	usual  = 4   // rounds
	long   = 240 // with SOAK=1
	stormy = 30  // things that each caller does in a round while boxd is disturbed
	calm   = 10  // and while nobody kills it
)

// rounds is how many there are; SOAK_ROUNDS sets another number.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("SOAK_ROUNDS")); err == nil {
		return n
	}
	if os.Getenv("SOAK") != "" {
		return long
	}
	return usual
}

// seed is another one each time; SOAK_SEED sets that of an earlier run. What is done is the same again; who is
// first is not.
func seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("SOAK_SEED"), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
}

// base is what every configuration here has.
const base = boxtest.Kept + `
[queue]
wait = "1m"
length = 1000
[audit]
max_size = "1MiB"
max_files = 1000
[profiles.cold]
`

// The callers: of two users there are two each. One of the others is held by a policy, one is root.
func users() []uint32 { return []uint32{4242, 4242, 4243, 4243, 4245, 0} }

// soak is one run.
type soak struct {
	t       *testing.T
	d       *boxtest.Daemon
	rng     *rand.Rand
	plain   string // the configuration that it begins and ends with
	callers []*caller
	lives   atomic.Int64 // twice the number of the boxd that serves; one more while none does, or maybe the next
	counts  map[string]int
	checked int // so many books have been compared

	mu    sync.Mutex
	asked map[string]int // calls that were answered and have to have a record, by id
	deeds []deed
	books []book // what each boxd has left, in their order
}

func (s *soak) servedFrom() int { return int(s.lives.Load() / 2) }
func (s *soak) servedTo() int   { return int((s.lives.Load() + 1) / 2) }

func (s *soak) note(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[id]++
}

func (s *soak) did(d deed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deeds = append(s.deeds, d)
}

// configuration is one by chance.
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

// wrong is a configuration that is refused.
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
	refused = regexp.MustCompile(`the one before stays in force`)
)

// reload puts a configuration in force, and waits until the log says what has come of it.
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

// end lets end end this boxd, keeps what it has left, and starts the next.
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

// disturb does to boxd what its operators and its host may do.
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

// round has every caller do so much, and calls between again and again meanwhile.
func (s *soak) round(each int, between func()) {
	var all sync.WaitGroup
	s.t.Cleanup(all.Wait) // the test may end early, and boxd with it
	done := make(chan struct{}, each*len(s.callers))
	for _, c := range s.callers {
		all.Go(func() {
			for range each {
				if s.t.Failed() {
					return
				}
				c.work()
				done <- struct{}{}
			}
		})
	}
	go func() { all.Wait(); close(done) }()
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

// After whatever has happened, everything adds up: nothing is lost or there twice, and nothing is left.
func TestEverythingAddsUp(t *testing.T) {
	s := start(t)
	s.d.Warm()
	before := s.d.Look()
	s.stop() // so that what was used until now is on disk
	for range rounds() {
		s.round(stormy, s.disturb)
		s.quiet()
		s.exactly(func() {
			s.round(calm, func() { s.reload(s.configuration(), taken) })
		})
		s.quiet()
		if s.rng.IntN(2) == 0 { // with nobody there
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
	boxtest.Eventually(t, "no box is ahead of need", func() bool {
		st, err := s.d.Status(t.Context())
		return err == nil && len(st.Warm) == 0 && st.Sessions == 0
	})
	s.noLeaks()
	s.recorded()
	s.d.NothingLeft(before)
	t.Logf("calls answered %d, boxd %v", len(s.asked), s.counts)
}
