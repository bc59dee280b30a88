// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// media is the type of an archive.
const media = "application/x-tar"

// archivePath returns the session, the query and the path in it.
func archivePath(c *Call) (s *session.Session, query url.Values, p []byte, err error) {
	if s, err = c.session(); err != nil {
		return nil, nil, nil, err
	}
	query = c.R.URL.Query()
	p, err = requestPath("path", query.Get("path"), query.Get("path_base64"), workspace)
	return s, query, p, err
}

// downloadFile sends an archive of a directory or file.
func downloadFile(c *Call) (any, error) {
	s, query, p, err := archivePath(c)
	if err != nil {
		return nil, err
	}
	if c.R.Method == http.MethodHead {
		archiveHead(c.W.Header())
		c.limitReadTime()
		c.W.WriteHeader(http.StatusOK)
		return nil, nil
	}
	leave, err1 := queryFlag(query, "leave_out")
	full, err2 := queryFlag(query, "no_hard_links")
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	return send(c, s, &files.Pack{Path: p, LeaveOut: leave, Links: !full})
}

// collectOutputs sends an archive of some files and directories, as downloadFile does.
func collectOutputs(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var in api.ArchiveRequest
	if err := c.decodeBody(&in, maxBody); err != nil {
		return nil, err
	}
	req := &files.Pack{}
	if req.Path, err = requestPath("path", in.Path, in.PathBase64, workspace); err != nil {
		return nil, err
	}
	for _, p := range in.Paths {
		req.Some = append(req.Some, []byte(p))
	}
	for i, p := range in.PathsBase64 {
		b, err := base64.StdEncoding.DecodeString(p)
		if err != nil {
			return nil, fault.Field(fmt.Sprintf("paths_base64[%d]", i), p, "the bytes of a path in base64")
		}
		req.Some = append(req.Some, b)
	}
	if len(req.Some) == 0 {
		return nil, fault.Field("paths", fault.Word("empty"), "one path or more; use GET to get all of the directory")
	}
	return send(c, s, req)
}

func send(c *Call, s *session.Session, req *files.Pack) (any, error) {
	return nil, c.Sup.Files(c.Context(), s, string(req.Path), func(ctx context.Context, s *session.Session) error {
		return sendArchive(ctx, c, func(to io.Writer) error {
			_, err := sessionfiles.Pack(ctx, s, req, to)
			return err
		})
	})
}

// feeder streams the body of a request until the request is answered: a reader that is still blocked after that must not
// change the deadlines of the next request.
type feeder struct {
	c    *Call
	mu   sync.Mutex
	done bool // guarded by mu
}

func (f *feeder) Read(p []byte) (int, error) {
	f.mu.Lock()
	if f.done {
		f.mu.Unlock()
		return 0, io.ErrUnexpectedEOF
	}
	_ = http.NewResponseController(f.c.W).SetReadDeadline(time.Now().Add(transferTimeout)) // as above
	f.mu.Unlock()
	return f.c.R.Body.Read(p)
}

func (f *feeder) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = true
}

// uploadFile extracts the archive in the body into a directory.
func uploadFile(c *Call) (any, error) {
	s, query, p, err := archivePath(c)
	if err != nil {
		return nil, err
	}
	req := &files.Unpack{Path: p}
	for _, f := range []struct {
		name string
		is   *bool
	}{{"overwrite", &req.Overwrite}, {"case_twins", &req.CaseTwins}, {"outward_links", &req.OutwardLinks}} {
		if *f.is, err = queryFlag(query, f.name); err != nil {
			return nil, err
		}
	}
	if query.Has("case_twins") {
		req.CaseTwins = !req.CaseTwins // the query says whether they are allowed
	}
	body := &feeder{c: c}
	defer body.end()
	a, err := sessionfiles.Unpack(c.Context(), s, sessionfiles.BoxUser, req, body)
	if err != nil {
		return nil, err
	}
	return &api.ArchiveDone{Entries: a.Entries, Bytes: a.Bytes}, nil
}
