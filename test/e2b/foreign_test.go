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

// A foreign sandbox and a missing one get the same answer from every operation of the control planes of E2B and Scalebox,
// whatever the key and the request. How long the answers take is logged and not checked: boxd looks a session up by owner and id
// together, so it never finds a foreign one.
func TestT58AForeignSandboxIsAMissingOne(t *testing.T) {
	h := start(t)
	sb := h.create(t, "agent", `{}`)
	missing := strings.Map(func(r rune) rune { // of the same form
		if r >= 'a' && r < 'z' || r >= '0' && r < '9' {
			return r + 1
		}
		return r
	}, sb.ID)
	tried, elapsed := 0, map[string][]time.Duration{}
	for _, pattern := range e2b.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.Contains(path, "{id}") || strings.HasPrefix(path, "/templates/") { // here the ids are names shared by all
			continue
		}
		for _, who := range []string{"other", "nobody"} {
			for _, body := range []string{"", `{}`, `{"timeout":60}`, `{"timeout":-1}`, `{`} {
				var got [2]string
				for i, id := range []string{sb.ID, missing} {
					start := time.Now()
					status, text, head := h.asks(t, who, method, strings.ReplaceAll(path, "{id}", id), body)
					elapsed[fmt.Sprint(i)] = append(elapsed[fmt.Sprint(i)], time.Since(start))
					for _, own := range []string{"Date", "X-Request-Id", "Traceparent"} { // specific to one request
						head.Del(own)
					}
					if status < http.StatusBadRequest {
						t.Errorf("%s of %s: status = %d, text = %s, want status >= 400", pattern, who, status, text)
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
		slices.Sort(elapsed[i])
	}
	t.Logf("median of %d answers: about a foreign sandbox %v, about a missing one %v", tried, elapsed["0"][tried/2], elapsed["1"][tried/2])
	if status, text, _ := h.asks(t, "agent", "GET", "/sandboxes/"+sb.ID, ""); status != http.StatusOK {
		t.Errorf("after all of it: status = %d, text = %s, want status == 200", status, text)
	}
}
