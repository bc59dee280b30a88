// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// An interrupted archive upload leaves nothing: if its program is killed in a living box, it is cleaned up at once; if the box
// has ended, with the next upload into that workspace, from whichever session.
func TestAnArchiveThatIsCutOffLeavesNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	space(t, d, "both")
	d.NewSession(t, api.SessionRequest{ID: "sends", Workspace: "both"})
	d.NewSession(t, api.SessionRequest{ID: "sees", Workspace: "both"})
	defer func() {
		if t.Failed() {
			t.Logf("the workspace has:\n%s", d.Sh(t, "sees", "ls -lAR"))
		}
	}()
	whole := boxtest.Tar(0o644, map[string]string{"a": strings.Repeat("x", 60<<10)})
	for name, end := range map[string]func(){
		"killed": func() { d.Result(t, "sends", boxtest.Shell("kill -9 -1")) },
		"ended": func() {
			if err := d.DeleteSession(t.Context(), "sends"); err != nil {
				t.Error(err)
			}
			d.NewSession(t, api.SessionRequest{ID: "sends", Workspace: "both"})
			if _, err := d.UploadArchive(t.Context(), "sees", client.Upload{Path: "/workspace"}, bytes.NewReader(boxtest.Tar(0o644, nil))); err != nil {
				t.Error(err)
			}
		},
	} {
		body, feed := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := d.UploadArchive(t.Context(), "sends", client.Upload{Path: "/workspace"}, body)
			done <- err
		}()
		if _, err := feed.Write(whole[:30<<10]); err != nil {
			t.Fatal(err)
		}
		boxtest.Eventually(t, "an archive is being unpacked", func() bool {
			return d.Sh(t, "sees", "ls .boxd-*/content/a 2>/dev/null; true") != ""
		})
		end()
		boxtest.Eventually(t, "no part of the archive is left, "+name, func() bool { return d.Sh(t, "sees", "ls -A") == "" })
		feed.CloseWithError(errors.New("gone"))
		if err := <-done; err == nil {
			t.Errorf("%s: the incomplete archive was accepted", name)
		}
	}
}
