// SPDX-License-Identifier: Apache-2.0

package langbot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// LangBot actions start traces of their own, which their executions belong to.
func TestActionsLeaveSpans(t *testing.T) {
	t.Parallel()
	spans := boxtest.NewCollector(t)
	c := start(t, fmt.Sprintf("[traces]\nendpoint = %q", spans.URL)).dial(t)
	c.gets("box_init", `{"enabled":true,"backend":"local","local":{"profile":"default"}}`, new(map[string]any))
	c.gets("box_create_session", `{"session_id":"s","cmd":"","host_path":null}`, new(map[string]any))
	if r := c.run("s", "exit 3"); r["exit_code"] != 3.0 {
		t.Fatal(r)
	}
	made := spans.Find(t, "boxd", "langbot box_create_session")
	if session, _ := made.Has["boxd.session"].(string); made.Parent != "" || made.Has["boxd.principal"] != "langbot" || !strings.HasSuffix(session, "-s") || made.Has["http.request.method"] != nil {
		t.Errorf(`made = %+v, want made.Parent == "" and made.Has["boxd.principal"] == "langbot" and session ending with "-s" and made.Has["http.request.method"] == nil`,
			made)
	}
	boxtest.Eventually(t, "the span of the execution has that of the action as its parent", func() bool {
		all := spans.Spans()
		return slices.ContainsFunc(all, func(exec boxtest.Span) bool {
			return exec.Name == "exec" && exec.Has["process.exit.code"] == 3 && slices.ContainsFunc(all, func(s boxtest.Span) bool { return s.ID == exec.Parent && strings.HasPrefix(s.Name, "langbot ") })
		})
	})
}
