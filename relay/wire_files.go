// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// nameAnswer returns a file name for JSON: as text, and if it is not UTF-8 also its bytes in base64.
func nameAnswer(name []byte) (text, encoded string) {
	if utf8.Valid(name) {
		return string(name), ""
	}
	return strings.ToValidUTF8(string(name), "�"), base64.StdEncoding.EncodeToString(name)
}

func fileFailure(f *sessionfiles.Failure) *api.FileFailure {
	out := &api.FileFailure{Kind: string(f.Kind)}
	out.Path, out.PathBase64 = nameAnswer(f.Path)
	return out
}

// fileAnswer describes a file.
func fileAnswer(e *files.Entry) api.File {
	f := api.File{Type: e.Type, Size: e.Size, Mode: fmt.Sprintf("%04o", e.Mode), ModifiedAt: e.Time.UTC(), Digest: e.Digest}
	f.Path, f.PathBase64 = nameAnswer(e.Path)
	f.Target, f.TargetBase64 = nameAnswer(e.Target)
	if o := e.Owner; o != nil {
		f.UID, f.GID, f.User, f.Group = &o.UID, &o.GID, o.User, o.Group
	}
	f.Resolved, f.ResolvedBase64 = nameAnswer(e.Resolved)
	if e.TargetType != "" {
		f.TargetType, f.TargetMode = e.TargetType, fmt.Sprintf("%04o", e.TargetMode)
	}
	for name, value := range e.Xattrs {
		if f.Xattrs == nil {
			f.Xattrs = make(map[string]string, len(e.Xattrs))
		}
		f.Xattrs[name] = base64.StdEncoding.EncodeToString(value)
	}
	f.XattrsCut = e.XattrsCut
	return f
}

// xattrsOf reads extended attributes for a file; nil: leave them as they are.
func xattrsOf(prefix string, values map[string]string) (*files.Xattrs, error) {
	if prefix == "" && len(values) == 0 {
		return nil, nil //nolint:nilnil // as said
	}
	if prefix == "" {
		return nil, fault.Field("xattrs_prefix", fault.Word("missing"), "the beginning of the names in xattrs, for example user.app")
	}
	x := &files.Xattrs{Prefix: prefix, Values: make(map[string][]byte, len(values))}
	for name, text := range values {
		value, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fault.Field("xattrs["+name+"]", text, "the value of an attribute in base64")
		}
		x.Values[name] = value
	}
	return x, nil
}

// fileEventAnswer is an event of a watched directory.
func fileEventAnswer(e *files.Event) *api.FileEvent {
	out := &api.FileEvent{Event: e.What, Type: e.Type}
	out.Path, out.PathBase64 = nameAnswer(e.Path)
	out.From, out.FromBase64 = nameAnswer(e.From)
	if e.Entry != nil {
		out.File = new(fileAnswer(e.Entry))
	}
	return out
}

// ParseRange parses the Range header of a request for files.Get: one range of bytes. Anything else is not ok and to be
// ignored, which is always allowed for that header (RFC 9110, section 14.2).
func ParseRange(header string) (offset, length int64, ok bool) {
	text, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(text, "-")
	if !ok || !dash {
		return 0, 0, false
	}
	number := func(text string) (int64, bool) {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil && text[0] >= '0' && text[0] <= '9'
	}
	if first == "" { // the last n bytes
		n, ok := number(last)
		if n == 0 {
			return math.MaxInt64, 0, ok // outside of every file
		}
		return -n, 0, ok
	}
	offset, ok = number(first)
	if !ok || last == "" {
		return offset, 0, ok
	}
	end, ok := number(last)
	if !ok || end < offset {
		return 0, 0, false
	}
	if end == math.MaxInt64 {
		return offset, 0, true
	}
	return offset, end - offset + 1, true
}

// Numbers of listed changes.
const (
	defaultChanges = 1000
	maxChanges     = 20_000
)

// changesRequest returns what an execution request wants to know about changes in the workspace; nil: nothing.
func changesRequest(r *api.ExecRequest) (*sessionfiles.ChangesRequest, error) {
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
	case w.Limit < 0 || w.Limit > maxChanges:
		return nil, fault.Field("changes_with.limit", w.Limit, fmt.Sprintf("1 to %d", maxChanges))
	}
	changes := &sessionfiles.ChangesRequest{Include: w.Include, Exclude: w.Exclude, Limit: w.Limit, Digest: w.Digest}
	if w.MaxSize != nil {
		changes.MaxSize = int64(*w.MaxSize)
	}
	if changes.Limit == 0 {
		changes.Limit = defaultChanges
	}
	return changes, nil
}

// changesAnswer describes what an execution has changed in the workspace; nil if that was not checked.
func changesAnswer(r *sessionfiles.ChangesReport) *api.Changes {
	if r == nil {
		return nil
	}
	c := &api.Changes{
		Created: []api.File{}, Changed: []api.File{}, Removed: []api.RemovedFile{}, Counts: api.ChangeCounts{Created: r.Created, Changed: r.Changed, Removed: r.Removed},
		TooLarge: r.Large, Unreadable: r.Unread, Truncated: r.Cut != "", Exact: r.Exact, Unknown: r.Unknown,
	}
	for i := range r.Changes {
		e := &r.Changes[i].Entry
		switch f := fileAnswer(e); r.Changes[i].What {
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
