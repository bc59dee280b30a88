// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// anExport returns an export of a session with that many bytes in its workspace.
func anExport(t *testing.T, size int) []byte {
	t.Helper()
	definition, err := json.Marshal(map[string]any{"format": 1, "definition": api.SessionDefinition{Session: json.RawMessage(`{"id":"s"}`), Paths: []string{"/workspace"}}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, entry := range []struct {
		name string
		data []byte
	}{{"definition.json", definition}, {"0/f", make([]byte, size)}, {"end", nil}} {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: entry.name, Size: int64(len(entry.data)), Mode: 0o600})
		if err == nil {
			_, err = w.Write(entry.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// refusing is a boxd that makes sessions and takes no files.
type refusing struct {
	busy    int      // deletions that fail, before one does not
	removed []string // paths
}

func (b *refusing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, body any) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body)
	}
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/v1/sessions":
		answer(http.StatusCreated, api.Session{ID: "s"})
	case r.Method == http.MethodPatch:
		answer(http.StatusOK, api.Session{ID: "s"})
	case strings.HasSuffix(r.URL.Path, "/definition"):
		answer(http.StatusOK, api.SessionDefinition{})
	case strings.HasSuffix(r.URL.Path, "/archive"):
		answer(http.StatusTooManyRequests, api.Problem{Type: api.ProblemType + "exhausted", Status: http.StatusTooManyRequests, Detail: "the workspace is full"})
	case r.Method == http.MethodDelete && b.busy > 0:
		b.busy--
		answer(http.StatusServiceUnavailable, api.Problem{Type: api.ProblemType + "unavailable", Status: http.StatusServiceUnavailable, Detail: "restarting"})
	case r.Method == http.MethodDelete:
		b.removed = append(b.removed, r.URL.Path)
		w.WriteHeader(http.StatusNoContent)
	}
}

// An import whose files are refused before they are read says why, and its session is removed, though the first try of that fails.
func TestAnImportThatIsRefusedSaysWhy(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 10 << 20} {
		boxd := &refusing{busy: 1}
		server := httptest.NewServer(boxd)
		t.Cleanup(server.Close)
		c := client.New(server.URL)
		t.Cleanup(c.Close)
		_, err := c.Import(t.Context(), bytes.NewReader(anExport(t, size)), client.ImportOptions{})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Detail != "the workspace is full" {
			t.Errorf(`%d bytes: err = %v, want ok == true and e.Detail == "the workspace is full"`, size, err)
		}
		if len(boxd.removed) != 1 || boxd.removed[0] != "/v1/sessions/s" {
			t.Errorf("%d bytes: it has removed %v", size, boxd.removed)
		}
	}
}

// An error at the end of an export, after its last entry, counts if the whole export is requested.
func TestAnImportReadsToTheEnd(t *testing.T) {
	t.Parallel()
	why := errors.New("the digest is another")
	data := anExport(t, 0)
	for toEnd, want := range map[bool]error{true: why, false: nil} {
		boxd := &refusing{}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/archive") {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, "{}")
				return
			}
			boxd.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		c := client.New(server.URL)
		t.Cleanup(c.Close)
		_, err := c.Import(t.Context(), io.MultiReader(bytes.NewReader(data), failing{why}), client.ImportOptions{ToEnd: toEnd})
		if !errors.Is(err, want) || len(boxd.removed) != map[bool]int{true: 1}[toEnd] {
			t.Errorf("%v: %v, removed %v", toEnd, err, boxd.removed)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// What cannot be read is not said to be no export: it may be one.
func TestAnExportThatCannotBeReadIsNotCalledAnother(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk does not answer")
	whole := anExport(t, 10)
	for _, n := range []int{0, 100, 600} {
		_, err := client.New("/nowhere").Import(t.Context(), io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(broken)), client.ImportOptions{})
		if !errors.Is(err, broken) || errors.Is(err, client.ErrNoExport) {
			t.Errorf("after %d bytes: err = %v, want err is %v and err is not client.ErrNoExport", n, err, broken)
		}
	}
}
