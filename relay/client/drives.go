// SPDX-License-Identifier: Apache-2.0

// This file is the part of boxd's client about drives.

package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// Drives asks a boxd about drives: those of the caller, or of the owner that the client names.
type Drives struct{ *Client }

func driveSegment(name string) string { return strings.ReplaceAll(url.PathEscape(name), ".", "%2E") }

// path is that of a request about a drive, or about all.
func (c Drives) path(name, rest string, query url.Values) (string, error) {
	if name == "" {
		return "", ErrNoID
	}
	return c.all("/"+driveSegment(name)+rest, query), nil
}

func (c Drives) all(rest string, query url.Values) string {
	if query == nil {
		query = url.Values{}
	}
	if c.Owner != "" {
		query.Set("owner", c.Owner)
	}
	if len(query) == 0 {
		return "/v1/drives" + rest
	}
	return "/v1/drives" + rest + "?" + query.Encode()
}

// ask makes a request about one drive and reads its answer.
func ask[Out any](ctx context.Context, c Drives, method, name, rest string, query url.Values, in any) (out Out, status int, err error) {
	path, err := c.path(name, rest, query)
	if err == nil {
		status, err = c.Ask(ctx, method, path, in, &out)
	}
	return out, status, err
}

// List lists all, by name.
func (c Drives) List(ctx context.Context) ([]api.Drive, error) {
	var list api.DriveList
	_, err := c.Ask(ctx, http.MethodGet, c.all("", nil), nil, &list)
	return list.Drives, err
}

// Get describes a drive.
func (c Drives) Get(ctx context.Context, name string) (api.Drive, error) {
	d, _, err := ask[api.Drive](ctx, c, http.MethodGet, name, "", nil, nil)
	return d, err
}

// Change changes how a drive is kept.
func (c Drives) Change(ctx context.Context, name string, req *api.DriveChange) (api.Drive, error) {
	d, _, err := ask[api.Drive](ctx, c, http.MethodPatch, name, "", nil, req)
	return d, err
}

// Pushed says that a version is elsewhere too.
func (c Drives) Pushed(ctx context.Context, name string, version int) (api.Drive, error) {
	d, _, err := ask[api.Drive](ctx, c, http.MethodPost, name, "/pushed", nil, &api.DrivePushed{Version: version})
	return d, err
}

// Remove removes a version of a drive, or all of it if version is 0. One that a session has is refused.
func (c Drives) Remove(ctx context.Context, name string, version int) error {
	path, err := c.path(name, "", numbered(version))
	if err == nil {
		_, err = c.Ask(ctx, http.MethodDelete, path, nil, nil)
	}
	return err
}

// Filling says what the next version of a drive is made of.
type Filling struct {
	Archive               io.Reader // zip, or tar that may be compressed by gzip; nil: from a session
	Session, Path, Output string    // a directory of a session, or a version of its outputs
	Into                  string    // the directory of the drive
	Add                   bool      // what else the newest version has stays
	IfVersion             *int      // the number that the newest version must have, 0: none; nil: any
}

// Fill makes the next version of a drive, and the drive if there is none. isNew is false if that would be what the
// newest version is.
func (c Drives) Fill(ctx context.Context, name string, f *Filling) (v api.DriveVersion, isNew bool, err error) {
	q := url.Values{}
	for key, value := range map[string]string{"session": f.Session, "path": f.Path, "output_version": f.Output, "into": f.Into} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if f.Add {
		q.Set("add", "true")
	}
	if f.IfVersion != nil {
		q.Set("if_version", strconv.Itoa(*f.IfVersion))
	}
	var body any
	if f.Archive != nil {
		body = f.Archive
	}
	v, status, err := ask[api.DriveVersion](ctx, c, http.MethodPost, name, "/versions", q, body)
	return v, status == http.StatusCreated, err
}

// Index lists what a version has, 0 the newest, whose paths begin with prefix, from an offset on; limit 0 is the usual one.
func (c Drives) Index(ctx context.Context, name string, version int, prefix string, offset, limit int) (api.DriveIndex, error) {
	q := numbered(version)
	q.Set("prefix", prefix)
	q.Set("offset", strconv.Itoa(offset))
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	x, _, err := ask[api.DriveIndex](ctx, c, http.MethodGet, name, "/index", q, nil)
	return x, err
}

// Text is a text for a prompt, of at most so many bytes; 0 is the usual bound.
func (c Drives) Text(ctx context.Context, name string, version, bytes int) (api.DriveText, error) {
	q := numbered(version)
	if bytes > 0 {
		q.Set("bytes", strconv.Itoa(bytes))
	}
	x, _, err := ask[api.DriveText](ctx, c, http.MethodGet, name, "/text", q, nil)
	return x, err
}

// Archive returns a tar archive of a version, 0 the newest, which the caller must close. It is whole if it is read to io.EOF.
func (c Drives) Archive(ctx context.Context, name string, version int) (io.ReadCloser, error) {
	path, err := c.path(name, "/archive", numbered(version))
	if err != nil {
		return nil, err
	}
	return c.Open(ctx, http.MethodGet, path, nil)
}

// Switch gives a session a version of a drive, 0 the newest; isNew is false if it had one.
func (c Drives) Switch(ctx context.Context, session, name string, version int) (k api.SessionDrive, isNew bool, err error) {
	rest := "/drives/" + driveSegment(name)
	if version > 0 {
		rest += "?version=" + strconv.Itoa(version)
	}
	status, err := c.About(ctx, http.MethodPut, session, rest, nil, &k)
	return k, status == http.StatusCreated, err
}

// Detach takes a drive from a session. One in use is refused, and mounts.UsersOf tells who uses it; with force, what is
// open of it stays open.
func (c Drives) Detach(ctx context.Context, session, name string, force bool) error {
	rest := "/drives/" + driveSegment(name)
	if force {
		rest += "?force=true"
	}
	_, err := c.About(ctx, http.MethodDelete, session, rest, nil, nil)
	return err
}

func numbered(version int) url.Values {
	if version == 0 {
		return url.Values{}
	}
	return url.Values{"version": {strconv.Itoa(version)}}
}
