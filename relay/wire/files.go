// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// Name is a name of a file as JSON carries it: as text, and where it is none as bytes in base64 besides.
func Name(name []byte) (text, encoded string) {
	if utf8.Valid(name) {
		return string(name), ""
	}
	return strings.ToValidUTF8(string(name), "�"), base64.StdEncoding.EncodeToString(name)
}

func fileFailure(f *sessionfiles.Failure) *api.FileFailure {
	out := &api.FileFailure{Kind: string(f.Kind)}
	out.Path, out.PathBase64 = Name(f.Path)
	return out
}

// File describes a file.
func File(e *files.Entry) api.File {
	f := api.File{Type: e.Type, Size: e.Size, Mode: fmt.Sprintf("%04o", e.Mode), ModifiedAt: e.Time.UTC(), Digest: e.Digest}
	f.Path, f.PathBase64 = Name(e.Path)
	f.Target, f.TargetBase64 = Name(e.Target)
	return f
}

// How many changes are listed.
const (
	usualChanges = 1000
	mostChanges  = 20_000
)

// Changes is what a request for an execution asks of the changes in the workspace; nil: nothing.
func Changes(r *api.ExecRequest) (*sessionfiles.ChangesRequest, error) {
	w := r.ChangesWith
	switch {
	case !r.Changes && w != nil:
		return nil, fault.Field("changes_with", fault.Word("given"), "left out without changes = true")
	case !r.Changes:
		return nil, nil
	case r.Detach:
		return nil, fault.Field("changes", "true", "false with detach")
	case w == nil:
		w = &api.ChangesWith{}
	case w.Limit < 0 || w.Limit > mostChanges:
		return nil, fault.Field("changes_with.limit", w.Limit, fmt.Sprintf("1 to %d", mostChanges))
	}
	asked := &sessionfiles.ChangesRequest{Include: w.Include, Exclude: w.Exclude, Limit: w.Limit, Digest: w.Digest}
	if w.MaxSize != nil {
		asked.MaxSize = int64(*w.MaxSize)
	}
	if asked.Limit == 0 {
		asked.Limit = usualChanges
	}
	return asked, nil
}

// Changed describes what an execution has done to the workspace; nil if nobody has looked.
func Changed(r *sessionfiles.ChangesReport) *api.Changes {
	if r == nil {
		return nil
	}
	c := &api.Changes{
		Created: []api.File{}, Changed: []api.File{}, Removed: []api.RemovedFile{}, Counts: api.ChangeCounts{Created: r.Created, Changed: r.Changed, Removed: r.Removed},
		TooLarge: r.Large, Unreadable: r.Unread, Truncated: r.Cut != "", Exact: r.Exact, Unknown: r.Unknown,
	}
	for i := range r.Changes {
		e := &r.Changes[i].Entry
		switch f := File(e); r.Changes[i].What {
		case files.WasCreated:
			c.Created = append(c.Created, f)
		case files.WasChanged:
			c.Changed = append(c.Changed, f)
		default:
			c.Removed = append(c.Removed, api.RemovedFile{Path: f.Path, PathBase64: f.PathBase64, Type: f.Type, Size: f.Size})
		}
	}
	return c
}
