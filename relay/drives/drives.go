// SPDX-License-Identifier: Apache-2.0

// Package drives has the routes about drives, and about those that sessions have.
package drives

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/route"
	"github.com/boxd-dev/boxd/relay/wire"
	"github.com/boxd-dev/boxd/supervisor/activation"
	store "github.com/boxd-dev/boxd/supervisor/drives"
	does "github.com/boxd-dev/boxd/supervisor/files"
	"github.com/boxd-dev/boxd/supervisor/outputs"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// patience is how long a caller may take for a piece of an archive.
const patience = time.Minute

// Usual sizes of what is told at once.
const (
	usualEntries = 200
	usualText    = 4096
)

// List lists those of the caller.
func List(c *route.Call) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	out := api.DriveList{Drives: []api.Drive{}}
	for _, d := range c.Drives.List(who.Name) {
		out.Drives = append(out.Drives, drive(&d))
	}
	return out, nil
}

// Get describes one.
func Get(c *route.Call) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	d, err := c.Drives.Get(who.Name, c.Path.Drive)
	if err != nil {
		return nil, err
	}
	return drive(&d), nil
}

// Change changes how one is kept.
func Change(c *route.Call) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.DriveChange
	if err := c.DecodeBody(&in, route.MaxSessionBody); err != nil {
		return nil, err
	}
	d, err := c.Drives.Keep(who.Name, c.Path.Drive, store.Kept{Versions: in.KeepVersions, Age: in.KeepAge, Push: in.Push})
	if err != nil {
		return nil, err
	}
	return drive(&d), nil
}

// Pushed notes that a version is elsewhere too.
func Pushed(c *route.Call) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.DrivePushed
	if err := c.DecodeBody(&in, route.MaxSessionBody); err != nil {
		return nil, err
	}
	if in.Version < 1 {
		return nil, fault.Field("version", in.Version, "the number of a version")
	}
	d, err := c.Drives.Pushed(who.Name, c.Path.Drive, in.Version)
	if err != nil {
		return nil, err
	}
	return drive(&d), nil
}

// Delete removes one, or a version of it.
func Delete(c *route.Call) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	version, err := number(c.R.URL.Query(), "version", 0, 1)
	if err != nil {
		return nil, err
	}
	return route.NoContent{}, c.Drives.Remove(who.Name, c.Path.Drive, version)
}

// Fill makes the next version of what comes with the request, or of a directory of a session.
func Fill(c *route.Call) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	f := &store.Filling{Into: query.Get("into")}
	if f.Add, err = flag(query, "add"); err != nil {
		return nil, err
	}
	if query.Has("if_version") {
		last, err := number(query, "if_version", 0, 0)
		if err != nil {
			return nil, err
		}
		f.IfLast = &last
	}
	var v store.Version
	var isNew bool
	path, err := promoted(query)
	switch {
	case err != nil:
		return nil, err
	case path == "":
		v, isNew, err = c.Drives.Fill(c.Context(), who.Name, c.Path.Drive, f, &sent{c})
	default:
		v, isNew, err = fromSession(c, who.Name, f, path)
	}
	if err != nil {
		return nil, err
	}
	if isNew {
		return route.Created{Body: version(&v)}, nil
	}
	return version(&v), nil
}

// promoted is the directory of a session that is to be filled from; "": the request has an archive.
func promoted(query url.Values) (string, error) {
	path, output := query.Get("path"), query.Get("output_version")
	switch {
	case query.Get("session") == "":
		for _, name := range []string{"session", "path", "output_version"} {
			if query.Has(name) {
				return "", fault.Field(name, query.Get(name), "beside session, a directory or output of it")
			}
		}
		return "", nil
	case (path == "") == (output == ""):
		return "", fault.Field("path", path, "a directory of the session, or output_version instead")
	case path != "":
		return path, nil
	}
	return outputs.Dir(output), policy.ValidSpaceName("output_version", output)
}

// fromSession has a directory of a session packed inside its box.
func fromSession(c *route.Call, who string, f *store.Filling, path string) (v store.Version, isNew bool, err error) {
	owner, err := c.Owner()
	if err != nil {
		return v, false, err
	}
	id := c.R.URL.Query().Get("session")
	s, err := c.Sup.Session(owner, id)
	if err != nil {
		return v, false, err
	}
	f.Origin = "session " + id + ", " + path
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := does.Pack(ctx, s, &files.Pack{Path: []byte(path)}, w)
		w.CloseWithError(err)
		packed <- err
	}()
	v, isNew, err = c.Drives.Fill(ctx, who, c.Path.Drive, f, r)
	r.CloseWithError(errUnread)
	cancel() // whoever still packs is done
	if failed := <-packed; failed != nil && !errors.Is(failed, errUnread) && !errors.Is(failed, context.Canceled) {
		return v, false, failed
	}
	return v, isNew, err
}

var errUnread = errors.New("nobody reads it any more")

// Index lists what a version has, page by page.
func Index(c *route.Call) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	v, err1 := number(query, "version", 0, 1)
	offset, err2 := number(query, "offset", 0, 0)
	limit, err3 := number(query, "limit", usualEntries, 1)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return nil, err
	}
	is, list, next, err := c.Drives.Index(who.Name, c.Path.Drive, v, query.Get("prefix"), offset, limit)
	if err != nil {
		return nil, err
	}
	out := api.DriveIndex{Version: version(&is), Entries: []api.DriveEntry{}, Next: next}
	for _, e := range list {
		x := api.DriveEntry{Path: e.Path, Type: "file", Size: e.Size, SHA256: e.SHA256, Executable: e.Program}
		if e.Dir {
			x.Type = "directory"
		}
		out.Entries = append(out.Entries, x)
	}
	return out, nil
}

// Text is a text for a prompt.
func Text(c *route.Call) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	v, err1 := number(query, "version", 0, 1)
	most, err2 := number(query, "bytes", usualText, 1)
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	is, text, err := c.Drives.Text(who.Name, c.Path.Drive, v, most, activation.DriveTarget(c.Path.Drive))
	if err != nil {
		return nil, err
	}
	return api.DriveText{Version: is.Number, Text: text}, nil
}

// Archive sends a version as a tar archive. One that fails on its way has no end.
func Archive(c *route.Call) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	v, err := number(c.R.URL.Query(), "version", 0, 1)
	if err != nil {
		return nil, err
	}
	to := &sender{c: c}
	if c.R.Method == http.MethodHead {
		_, tree, err := c.Drives.Take(who.Name, c.Path.Drive, v)
		if err == nil {
			c.Drives.Release(tree)
			to.begin()
			c.W.WriteHeader(http.StatusOK)
		}
		return nil, err
	}
	if _, err = c.Drives.Archive(who.Name, c.Path.Drive, v, to); err != nil && to.begun {
		panic(http.ErrAbortHandler) // net/http's way to cut an answer off
	}
	return nil, err
}

// Switch gives a session a version of a drive.
func Switch(c *route.Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	v, err := number(c.R.URL.Query(), "version", 0, 1)
	if err != nil {
		return nil, err
	}
	k, isNew, err := c.Sup.Skills.Switch(c.Context(), s, c.Path.Drive, v)
	if err != nil {
		return nil, err
	}
	if isNew {
		return route.Created{Body: wire.Drive(&k)}, nil
	}
	return wire.Drive(&k), nil
}

// Detach takes a drive from a session.
func Detach(c *route.Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	force, err := flag(c.R.URL.Query(), "force")
	if err != nil {
		return nil, err
	}
	return route.NoContent{}, c.Sup.Skills.Detach(c.Context(), s, c.Path.Drive, force)
}

func drive(d *store.Drive) api.Drive {
	out := api.Drive{Name: d.Name, CreatedAt: d.Created.UTC(), KeepVersions: d.KeepVersions, KeepAge: d.KeepAge, Push: d.Push, Versions: []api.DriveVersion{}}
	for i := range d.Versions {
		out.Versions = append(out.Versions, version(&d.Versions[i]))
	}
	return out
}

func version(v *store.Version) api.DriveVersion {
	return api.DriveVersion{
		Version: v.Number, Digest: v.Digest, Origin: v.Origin, Bytes: v.Bytes, Entries: v.Entries, CreatedAt: v.Created.UTC(), PushedAt: v.Pushed, Sessions: v.Held,
	}
}

// number reads a number of the query, least or more.
func number(query url.Values, name string, usual, least int) (int, error) {
	if !query.Has(name) {
		return usual, nil
	}
	n, err := strconv.Atoi(query.Get(name))
	if err != nil || n < least {
		return 0, fault.Field(name, query.Get(name), strconv.Itoa(least)+" or more")
	}
	return n, nil
}

func flag(query url.Values, name string) (bool, error) {
	switch value := query.Get(name); {
	case !query.Has(name) || value == "false":
		return false, nil
	case value == "true":
		return true, nil
	default:
		return false, fault.Field(name, value, "true, false")
	}
}

// sent reads the body of a request as it comes.
type sent struct{ c *route.Call }

func (s *sent) Read(p []byte) (int, error) {
	_ = http.NewResponseController(s.c.W).SetReadDeadline(time.Now().Add(patience)) // every connection of ours has deadlines
	return s.c.R.Body.Read(p)
}

// sender writes an answer as it comes; its first write is the answer's beginning.
type sender struct {
	c     *route.Call
	begun bool
}

func (s *sender) begin() {
	_ = http.NewResponseController(s.c.W).SetWriteDeadline(time.Now().Add(patience)) // as above
	if !s.begun {
		s.begun = true
		s.c.W.Header().Set("Content-Type", "application/x-tar")
		s.c.W.Header().Set("X-Content-Type-Options", "nosniff")
	}
}

func (s *sender) Write(p []byte) (int, error) {
	s.begin()
	return s.c.W.Write(p)
}
