// SPDX-License-Identifier: Apache-2.0

package buckets_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// TestMain makes the test binary act as a client of boxd if a test starts it as one.
func TestMain(m *testing.M) {
	boxtest.BeCaller(nil)
	os.Exit(m.Run())
}

// pushing returns a boxd with a bucket, and the bucket's server.
func pushing(t *testing.T, more ...string) *bucketTest {
	t.Helper()
	boxtest.RequireRoot(t)
	s3 := startGateway(t)
	key := filepath.Join(boxtest.TempDir(t), "s3")
	if err := os.WriteFile(key, []byte("aws_access_key_id = me\naws_secret_access_key = "+secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	table := fmt.Sprintf("[buckets.results]\naddress = \"s3://results/base\"\nendpoint = %q\ninsecure = true\nfile = %q\n", s3.URL, key)
	return &bucketTest{t, boxtest.Start(t, append(more, table)...), s3, secret}
}

// arrives waits for an object with this content.
func (s *bucketTest) arrives(object, want string) {
	s.Helper()
	boxtest.Eventually(s, fmt.Sprintf("%s is in the bucket, with %q", object, want), func() bool {
		got, err := os.ReadFile(filepath.Join(s.s3.dir, "results", object)) // there may be an earlier version of it
		return err == nil && string(got) == want
	})
}

// pushed waits until a session's report on its results satisfies is.
func (s *bucketTest) pushed(session string, is func(*api.Pushed) bool) (last api.Pushed) {
	s.Helper()
	boxtest.Eventually(s, "session "+session+" reports the push of its results", func() bool {
		got, err := s.boxd.Session(s.Context(), session)
		if err != nil || got.Pushed == nil {
			return false
		}
		last = *got.Pushed
		return is(&last)
	})
	return last
}

// happened waits for an event.
func (s *bucketTest) happened(words ...string) {
	s.Helper()
	boxtest.Eventually(s, "there is an event with "+strings.Join(words, ", "), func() bool {
		out, _ := s.boxctl("events", "--type", "push.done", "--type", "push.failed")
		for line := range strings.Lines(out) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return true
			}
		}
		return false
	})
}

// down answers everything with an error, like an overloaded server.
func down(w http.ResponseWriter, r *http.Request, _ http.Handler) {
	_, _ = io.Copy(io.Discard, r.Body) // a client that is still sending would miss the answer
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, "<Error><Code>SlowDown</Code><Message>too much</Message></Error>")
}

const makes = "echo $0 > $OUTPUT_DIR/result"

// The output directory of an execution is pushed to the bucket that its session names, whichever way it was requested, and the
// answer of the execution does not wait for that. No credential is in the box.
func TestResultsArePushedByThemselves(t *testing.T) {
	t.Parallel()
	s := pushing(t)
	s.boxd.NewSession(t, api.SessionRequest{ID: "work", Push: "results/run"})
	s.boxd.Result(t, "work", api.ExecRequest{Argv: []string{"sh", "-c", makes, "one"}, OutputVersion: "v1"})
	s.arrives("base/run/v1/result", "one\n")
	s.does("", "exec", "--output-version", "v2", "work", "--", "sh", "-c", makes, "two")
	s.arrives("base/run/v2/result", "two\n")
	s.boxd.Result(t, "work", api.ExecRequest{ID: "named", Argv: []string{"sh", "-c", makes, "three"}, OutputVersion: "v3"})
	s.arrives("base/run/v3/result", "three\n")
	s.pushed("work", func(p *api.Pushed) bool { return p.Waiting == 0 })
	// Requesting an execution with an id again returns its answer, and pushes nothing again.
	s.boxd.Result(t, "work", api.ExecRequest{ID: "named", Argv: []string{"sh", "-c", makes, "three"}, OutputVersion: "v3"})
	// Later content of a version replaces the earlier one, and unchanged files are not sent again.
	s.boxd.Result(t, "work", api.ExecRequest{Argv: []string{"sh", "-c", makes + "; mkdir $OUTPUT_DIR/sub; echo x > $OUTPUT_DIR/sub/more", "four"}, OutputVersion: "v1"})
	s.arrives("base/run/v1/sub/more", "x\n")
	s.arrives("base/run/v1/result", "four\n")
	if p := s.pushed("work", func(p *api.Pushed) bool { return p.Waiting == 0 }); p.Done != 4 || p.GivenUp != 0 || p.Error != "" {
		t.Errorf(`of its results the session says %+v, want p.Done == 4 and p.GivenUp == 0 and p.Error == ""`, p)
	}
	s.happened("push.done", "work", "run/v2")
	// Without a path the results go to that of the session.
	s.does("", "run", "--name", "once", "--push", "results", "--output-version", "v1", "--", "sh", "-c", makes, "five")
	s.arrives("base/once/v1/result", "five\n")
	// An execution without an output version has no results.
	s.boxd.Result(t, "work", api.ExecRequest{Argv: []string{"true"}})
	if p := s.pushed("work", func(*api.Pushed) bool { return true }); p.Waiting+p.Done != 4 {
		t.Errorf("an execution without a version counts: p = %+v, want p.Waiting + p.Done == 4", p)
	}
	if out := s.boxd.Sh(t, "work", "env; cat /proc/*/environ; grep -rs "+secret+" /workspace /tmp /etc /run; true"); strings.Contains(out, secret) {
		t.Errorf("the box has the secret: out = %s, want out without secret", out)
	}
	if strings.Contains(s.boxd.Log(), secret) {
		t.Error("the log has the secret")
	}
}

// A server that rejects results delays nothing; the failure is reported, and retried after the session and boxd have ended.
func TestResultsWaitForTheirBucket(t *testing.T) {
	t.Parallel()
	s := pushing(t)
	s.s3.does(down)
	s.boxd.NewSession(t, api.SessionRequest{ID: "work", Push: "results/late"})
	s.boxd.Result(t, "work", api.ExecRequest{Argv: []string{"sh", "-c", makes, "one"}, OutputVersion: "v1"})
	p := s.pushed("work", func(p *api.Pushed) bool { return p.Error != "" })
	if p.Waiting != 1 || p.Done != 0 || !strings.Contains(p.Error, "ServiceUnavailable") {
		t.Errorf(`of its results the session says %+v, want p.Waiting == 1 and p.Done == 0 and p.Error containing "ServiceUnavailable"`,
			p)
	}
	s.happened("push.failed", "retry", "late/v1", "ServiceUnavailable")
	s.does("results do not reach the bucket results (1 waiting)", "status")
	s.does("", "rm", "work")
	s.does("push/results", "drives", "ls")
	s.boxd.Kill()
	s.boxd.Restart()
	s.s3.does(fine)
	s.arrives("base/late/v1/result", "one\n")
	s.happened("push.done", "late/v1")
}

// Results of a program that outlives its boxd are pushed by the next boxd.
func TestResultsOfAProgramThatOutlivesBoxdArePushed(t *testing.T) {
	t.Parallel()
	s := pushing(t, boxtest.Lasting)
	s.boxd.NewSession(t, api.SessionRequest{ID: "work", Push: "results/next"})
	program := `{"id":"long","detach":true,"output_version":"v1","argv":["sh","-c","while ! test -e /workspace/go; do sleep 0.1; done; ` + makes + `","one"]}`
	if a := s.boxd.Raw(t, "POST", "/v1/sessions/work/exec", program); a.Code != http.StatusAccepted {
		t.Fatalf("a.Code = %d, a.Body = %s, want a.Code == 202", a.Code, a.Body)
	}
	if p := s.pushed("work", func(*api.Pushed) bool { return true }); p.Waiting != 1 {
		t.Errorf("the session reports about the push of its results: %+v, want p.Waiting == 1", p)
	}
	s.boxd.Kill()
	s.boxd.Restart()
	s.boxd.Sh(t, "work", "touch /workspace/go")
	s.arrives("base/next/v1/result", "one\n")
	s.pushed("work", func(p *api.Pushed) bool { return p.Waiting == 0 && p.Done == 1 })
}

// A bucket that is not in the configuration is refused, and so is one that a policy does not include.
func TestABucketIsTheOperatorsToGive(t *testing.T) {
	t.Parallel()
	s := pushing(t, fmt.Sprintf("[policy.few]\nprincipals = [\"uid:%d\"]\n", boxtest.OtherUID))
	s.fails("[buckets.NAME]", "create", "--push", "other/run", "a")
	s.fails("without spaces", "create", "--push", "results/../run", "a")
	answer := s.boxd.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions", `{"id":"a","push":"results/run"}`))
	if len(answer) != 1 || answer[0].Code != http.StatusForbidden || !strings.Contains(string(answer[0].Body), "policy.few.buckets") {
		t.Errorf(`a caller whose policy has no bucket: answer = %+v, want len(answer) == 1 and answer[0].Code == 403 and answer[0].Body containing "policy.few.buckets"`,
			answer)
	}
}
