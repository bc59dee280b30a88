// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// An archive that is cut off on its way leaves nothing: where its program is killed in a living box, at once; where the box
// is, with the next archive that comes there, from whatever session has the workspace.
func TestAnArchiveThatIsCutOffLeavesNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	space(t, d, "both")
	create(t, d, api.SessionRequest{ID: "sends", Workspace: "both"})
	create(t, d, api.SessionRequest{ID: "sees", Workspace: "both"})
	whole, err := io.ReadAll(archiveOf(t, map[string]string{"a": strings.Repeat("x", 60<<10)}))
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(){
		"killed": func() { in(t, d, "sends", sh("kill -9 -1")) },
		"ended": func() {
			if err := d.Delete(t.Context(), "sends"); err != nil {
				t.Error(err)
			}
			create(t, d, api.SessionRequest{ID: "sends", Workspace: "both"})
			if _, err := d.UploadArchive(t.Context(), "sees", client.Upload{Path: "/workspace"}, archiveOf(t, nil)); err != nil {
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
			return succeeds(t, d, "sees", sh("ls .boxd-*/content/a 2>/dev/null; true")) != ""
		})
		end()
		boxtest.Eventually(t, "nothing is left, "+name, func() bool { return succeeds(t, d, "sees", sh("ls -A")) == "" })
		feed.CloseWithError(errors.New("gone"))
		if err := <-done; err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
}
