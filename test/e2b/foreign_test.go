// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/relay/e2b"
)

// A sandbox of somebody else and one that does not exist are the same for every operation of E2B's control plane and of
// Scalebox', whatever key asks and whatever it sends. How long the answers take is in the log and decides nothing: boxd
// finds a session by its owner and its id together, so that there is nothing to be found of somebody else's.
func TestT58AForeignSandboxIsAMissingOne(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	missing := strings.Map(func(r rune) rune { // of the same form
		if r >= 'a' && r < 'z' || r >= '0' && r < '9' {
			return r + 1
		}
		return r
	}, sb.ID)
	tried, took := 0, map[string][]time.Duration{}
	for _, pattern := range e2b.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.Contains(path, "{id}") || strings.HasPrefix(path, "/templates/") { // whose ids are names of all
			continue
		}
		for _, who := range []string{"other", "nobody"} {
			for _, body := range []string{"", `{}`, `{"timeout":60}`, `{"timeout":-1}`, `{`} {
				var got [2]string
				for i, id := range []string{sb.ID, missing} {
					begun := time.Now()
					status, text, head := h.asks(t, who, method, strings.ReplaceAll(path, "{id}", id), body)
					took[fmt.Sprint(i)] = append(took[fmt.Sprint(i)], time.Since(begun))
					for _, own := range []string{"Date", "X-Request-Id", "Traceparent"} { // of one request alone
						head.Del(own)
					}
					if status < http.StatusBadRequest {
						t.Errorf("%s of %s: %d %s", pattern, who, status, text)
					}
					got[i] = strings.ReplaceAll(fmt.Sprint(status, text, head), id, "ID")
				}
				if diff := cmp.Diff(got[1], got[0]); diff != "" {
					t.Errorf("%s with %q tells %s a foreign sandbox from a missing one (-missing +foreign):\n%s", pattern, body, who, diff)
				}
				tried++
			}
		}
	}
	if tried < 15*10 {
		t.Errorf("only %d requests were tried", tried)
	}
	for _, i := range []string{"0", "1"} {
		slices.Sort(took[i])
	}
	t.Logf("median of %d answers: about a foreign sandbox %v, about a missing one %v", tried, took["0"][tried/2], took["1"][tried/2])
	if status, text, _ := h.asks(t, "agent", "GET", "/sandboxes/"+sb.ID, ""); status != http.StatusOK {
		t.Errorf("after all of it: %d %s", status, text)
	}
}
