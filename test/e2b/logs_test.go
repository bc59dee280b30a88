// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// logged is an entry of a sandbox's log.
type logged struct {
	Timestamp time.Time         `json:"timestamp"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

// The log of a sandbox has its events, for as long as boxd keeps them, for its owner only.
func TestASandboxHasALog(t *testing.T) {
	h := start(t)
	sb, other := h.create(t, "agent", `{}`), h.create(t, "other", `{}`)
	sb.sh(t, "exit 3")
	entries := func(path string) (list []logged) {
		t.Helper()
		var answer struct{ Logs []logged }
		status, text, _ := h.asks(t, "agent", "GET", path, "")
		if err := json.Unmarshal([]byte(text), &answer); status != http.StatusOK || err != nil || answer.Logs == nil {
			t.Fatalf("%s: status = %d, text = %s, want status == 200 and no error and answer.Logs != nil",
				path, status, text)
		}
		return answer.Logs
	}
	messages := func(list []logged) (all []string) {
		for _, l := range list {
			all = append(all, l.Message)
		}
		return all
	}
	path := "/v2/sandboxes/" + sb.ID + "/logs"
	want := []string{"session started", "process started", "process ended"}
	var all []logged
	boxtest.Eventually(t, "all lines are in the log of the sandbox", func() bool { // maybe after the end of the process's stream
		all = entries(path)
		return len(all) >= len(want)
	})
	if !slices.Equal(messages(all), want) {
		t.Fatalf("all = %+v, want messages(all) == want", all)
	}
	if last := all[2]; last.Level != "info" || last.Fields["logger"] != "boxd" || last.Fields["reason"] != "exited" || last.Fields["detail"] != "exit code 3" || last.Fields["process"] == "" {
		t.Errorf("last = %+v", last)
	}
	backwards := slices.Clone(want)
	slices.Reverse(backwards)
	for query, want := range map[string][]string{
		"?direction=backward": backwards, "?direction=backward&limit=1": backwards[:1], "?limit=2": want[:2], "?search=process+s": want[1:2], "?level=warn": nil, "?level=debug": want,
		fmt.Sprintf("?cursor=%d", all[2].Timestamp.UnixMilli()+1): nil, fmt.Sprintf("?direction=backward&cursor=%d", all[0].Timestamp.UnixMilli()-1): nil,
	} {
		if got := messages(entries(path + query)); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
	var old struct {
		Logs []struct {
			Timestamp time.Time
			Line      string
		}
		LogEntries []logged `json:"logEntries"`
	}
	status, text, _ := h.asks(t, "agent", "GET", strings.TrimPrefix(path, "/v2")+"?limit=2&start=1", "")
	if err := json.Unmarshal([]byte(text), &old); status != http.StatusOK || err != nil || len(old.Logs) != 2 || !slices.Equal(messages(old.LogEntries), want[:2]) {
		t.Fatalf("status = %d, text = %s, want status == 200 and no error and len(old.Logs) == 2 and messages(old.LogEntries) == want[:2]",
			status, text)
	}
	var line map[string]string
	if err := json.Unmarshal([]byte(old.Logs[1].Line), &line); err != nil || line["level"] != "info" || line["logger"] != "boxd" || line["message"] != "process started" {
		t.Errorf(`old.Logs[1].Line = %q, want no error and line["level"] == "info" and line["logger"] == "boxd" and line["message"] == "process started"`,
			old.Logs[1].Line)
	}
	for _, query := range []string{"?level=loud", "?direction=up", "?limit=-1", "?limit=1001", "?cursor=x"} {
		if status, text, _ := h.asks(t, "agent", "GET", path+query, ""); status != http.StatusBadRequest {
			t.Errorf("%s: status = %d, text = %s, want status == 400", query, status, text)
		}
	}
	if status, text, _ := h.asks(t, "agent", "DELETE", "/sandboxes/"+sb.ID, ""); status != http.StatusNoContent {
		t.Fatalf("status = %d, text = %s, want status == 204", status, text)
	}
	if got := messages(entries(path)); !slices.Equal(got, append(want, "session ended")) {
		t.Errorf(`the log of the ended sandbox: got %q, want append(want, "session ended")`, got)
	}
	for _, id := range []string{other.ID, "inobody", "..", "a%2fb"} {
		if status, text, _ := h.asks(t, "agent", "GET", "/v2/sandboxes/"+id+"/logs", ""); status != http.StatusNotFound && status != http.StatusNotImplemented {
			t.Errorf("%s: status = %d, text = %s, want status == 404 or status == 501", id, status, text)
		}
	}
	if status, text, _ := h.asks(t, "listing", "GET", path, ""); status != http.StatusForbidden {
		t.Errorf("by a key that is for no events: status = %d, text = %s, want status == 403", status, text)
	}
}
