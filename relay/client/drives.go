// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/boxd-dev/boxd/relay/api"
)

func (c *Client) drive(name, rest string, query url.Values) target {
	return c.owned(about("/v1/drives", name, rest), query)
}

// Drives lists the drives of the caller, by name.
func (c *Client) Drives(ctx context.Context) ([]api.Drive, error) {
	list, err := request[api.DriveList](ctx, c, http.MethodGet, c.owned(target{path: "/v1/drives"}, nil), nil)
	return list.Drives, err
}

// Drive describes a drive.
func (c *Client) Drive(ctx context.Context, name string) (api.Drive, error) {
	return request[api.Drive](ctx, c, http.MethodGet, c.drive(name, "", nil), nil)
}

// ChangeDrive changes how a drive is kept.
func (c *Client) ChangeDrive(ctx context.Context, name string, req *api.DriveChange) (api.Drive, error) {
	return request[api.Drive](ctx, c, http.MethodPatch, c.drive(name, "", nil), req)
}

// MarkDrivePushed records that a version is stored elsewhere too.
func (c *Client) MarkDrivePushed(ctx context.Context, name string, version int) (api.Drive, error) {
	return request[api.Drive](ctx, c, http.MethodPost, c.drive(name, "/pushed", nil), &api.DrivePushed{Version: version})
}

// DeleteDrive removes a version of a drive, or the drive if version is 0. A version that a session uses is refused.
func (c *Client) DeleteDrive(ctx context.Context, name string, version int) error {
	_, err := c.do(ctx, http.MethodDelete, c.drive(name, "", driveVersion(version)), nil, nil)
	return err
}

// DriveFilling is the content of the next version of a drive.
type DriveFilling struct {
	Archive               io.Reader // zip, or tar, optionally with gzip; nil: from a session
	Session, Path, Output string    // a directory of a session, or a version of its outputs
	Into                  string    // the directory of the drive
	Add                   bool      // keep the other content of the newest version
	IfVersion             *int      // number that the newest version must have, 0: none; nil: any
}

// FillDrive makes the next version of a drive, and the drive if there is none. isNew is false if it would equal the
// newest version.
func (c *Client) FillDrive(ctx context.Context, name string, f *DriveFilling) (v api.DriveVersion, isNew bool, err error) {
	query := queryOf("session", f.Session, "path", f.Path, "output_version", f.Output, "into", f.Into, "add", yes(f.Add))
	if f.IfVersion != nil {
		query.Set("if_version", strconv.Itoa(*f.IfVersion))
	}
	return requestNew[api.DriveVersion](ctx, c, http.MethodPost, c.drive(name, "/versions", query), archiveBody(f.Archive))
}

// archiveBody returns the body of a request with an optional archive.
func archiveBody(archive io.Reader) any {
	if archive == nil {
		return nil
	}
	return archive
}

// DriveIndex lists the paths of a version, 0 the newest, that begin with prefix, starting at offset; limit 0 means the
// default.
func (c *Client) DriveIndex(ctx context.Context, name string, version int, prefix string, offset, limit int) (api.DriveIndex, error) {
	query := driveVersion(version)
	query.Set("prefix", prefix)
	query.Set("offset", strconv.Itoa(offset))
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return request[api.DriveIndex](ctx, c, http.MethodGet, c.drive(name, "/index", query), nil)
}

// DriveText returns a description for a prompt, of at most so many bytes; 0 means the default.
func (c *Client) DriveText(ctx context.Context, name string, version, bytes int) (api.DriveText, error) {
	query := driveVersion(version)
	if bytes > 0 {
		query.Set("bytes", strconv.Itoa(bytes))
	}
	return request[api.DriveText](ctx, c, http.MethodGet, c.drive(name, "/text", query), nil)
}

// DriveArchive returns a tar archive of a version, 0 the newest, which the caller must close. It is complete if it is
// read to io.EOF.
func (c *Client) DriveArchive(ctx context.Context, name string, version int) (io.ReadCloser, error) {
	return c.open(ctx, http.MethodGet, c.drive(name, "/archive", driveVersion(version)), nil)
}

// SwitchDrive gives a session a version of a drive, 0 the newest; isNew is false if it had the drive already.
func (c *Client) SwitchDrive(ctx context.Context, session, name string, version int) (k api.SessionDrive, isNew bool, err error) {
	to := c.session(session, "/drives/"+segment(name), queryOf("version", positive(version)))
	return requestNew[api.SessionDrive](ctx, c, http.MethodPut, to, nil)
}

// DetachDrive removes a drive from a session. One in use is refused, and MountUsersOf lists its users; with force, files
// that are open in it stay open.
func (c *Client) DetachDrive(ctx context.Context, session, name string, force bool) error {
	return c.unmount(ctx, session, "/drives/"+segment(name), queryOf("force", yes(force)))
}

// driveVersion names a version in a query; 0, the newest, is omitted.
func driveVersion(version int) url.Values {
	if version == 0 {
		return url.Values{}
	}
	return url.Values{"version": {strconv.Itoa(version)}}
}
