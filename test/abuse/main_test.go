// SPDX-License-Identifier: Apache-2.0

// Package abuse_test attacks running processes: their descriptors, terminals, output, clients, the state they leave for the next
// boxd. A test whose name begins with TestT is the case of that number in the list of abuse cases.
package abuse_test

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestMain(m *testing.M) {
	boxtest.BeCaller(map[string]func(string, []string) error{"hold": hold, "attach": stay})
	goleak.VerifyTestMain(m)
}

// awaitOutput waits until a process of s1 has written something.
func awaitOutput(t *testing.T, d *boxtest.Daemon, p, want string) {
	t.Helper()
	boxtest.Eventually(t, fmt.Sprintf("%s says %q", p, want), func() bool {
		a := d.Raw(t, "GET", "/v1/sessions/s1/processes/"+p+"/logs", "")
		return strings.Contains(string(a.Body), want)
	})
}

// told reads a stream to its end, and returns the number of bytes received, and of those reported as missing.
func drain(t *testing.T, c *boxtest.Peer) (came, missing int64, exit *api.ExecResult) {
	t.Helper()
	for {
		m := c.Hear()
		switch {
		case m.Closed != nil:
			t.Fatal(m.Closed)
		case m.Control == nil:
			came += int64(len(m.Data))
		case m.Control.Gap != nil:
			missing += m.Control.Gap.Bytes
		case m.Control.Exit != nil:
			return came, missing, m.Control.Exit
		}
	}
}
