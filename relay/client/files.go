// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/boxd-dev/boxd/relay/api"
)

// file makes a request about files of a session.
func file[Out any](ctx context.Context, c *Client, id, operation string, in any) (Out, error) {
	return ask[Out](ctx, c, http.MethodPost, c.session(id, "/fs/"+operation, nil), in)
}

// ReadFile returns a part of a file.
func (c *Client) ReadFile(ctx context.Context, id string, req *api.FileRead) (api.FileContent, error) {
	return file[api.FileContent](ctx, c, id, "read", req)
}

// WriteFile makes a content that of a file.
func (c *Client) WriteFile(ctx context.Context, id string, req *api.FileWrite) (api.FileWritten, error) {
	return file[api.FileWritten](ctx, c, id, "write", req)
}

// EditFile replaces texts in a file: all that it is asked for, or none.
func (c *Client) EditFile(ctx context.Context, id string, req *api.FileEdit) (api.FileEdited, error) {
	return file[api.FileEdited](ctx, c, id, "edit", req)
}

// GlobFiles finds files by name.
func (c *Client) GlobFiles(ctx context.Context, id string, req *api.FileGlob) (api.FileEntries, error) {
	return file[api.FileEntries](ctx, c, id, "glob", req)
}

// GrepFiles finds lines in files.
func (c *Client) GrepFiles(ctx context.Context, id string, req *api.FileGrep) (api.FileMatches, error) {
	return file[api.FileMatches](ctx, c, id, "grep", req)
}

// ListFiles lists a directory.
func (c *Client) ListFiles(ctx context.Context, id string, req *api.FileList) (api.FileEntries, error) {
	return file[api.FileEntries](ctx, c, id, "list", req)
}

// StatFile describes what is at a path.
func (c *Client) StatFile(ctx context.Context, id string, req *api.FileStat) (api.File, error) {
	return file[api.File](ctx, c, id, "stat", req)
}

// MoveFile renames a file or directory.
func (c *Client) MoveFile(ctx context.Context, id string, req *api.FileMove) error {
	_, err := file[api.FileDone](ctx, c, id, "move", req)
	return err
}

// RemoveFile removes a file or directory.
func (c *Client) RemoveFile(ctx context.Context, id string, req *api.FileRemove) error {
	_, err := file[api.FileDone](ctx, c, id, "remove", req)
	return err
}

// ChmodFile changes the mode of a file or directory.
func (c *Client) ChmodFile(ctx context.Context, id string, req *api.FileChmod) error {
	_, err := file[api.FileDone](ctx, c, id, "chmod", req)
	return err
}

// Upload says how an archive comes into a session.
type Upload struct {
	Path         string // directory; made if missing
	Overwrite    bool   // replace files that are there
	OutwardLinks bool   // take symbolic links that lead out of the directory
}

// UploadArchive makes a directory's content of a tar archive, which may be compressed by gzip: all of it or nothing.
func (c *Client) UploadArchive(ctx context.Context, id string, to Upload, archive io.Reader) (done api.ArchiveDone, err error) {
	query := url.Values{"path": {to.Path}, "overwrite": {strconv.FormatBool(to.Overwrite)}, "outward_links": {strconv.FormatBool(to.OutwardLinks)}}
	answer, err := c.archive(ctx, http.MethodPut, id, query, archive, "Content-Type", "application/x-tar")
	if err != nil {
		return done, err
	}
	defer answer.Close()
	if err := json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(&done); err != nil {
		return done, fmt.Errorf("read the answer: %w", err)
	}
	return done, nil
}

// DownloadArchive returns a tar archive of a directory's content or of a file, which the caller must close. It is
// whole if it is read to io.EOF. With leave, what may not be read is left out, and the archive says so.
func (c *Client) DownloadArchive(ctx context.Context, id, path string, leave bool) (io.ReadCloser, error) {
	return c.archive(ctx, http.MethodGet, id, url.Values{"path": {path}, "leave_out": {strconv.FormatBool(leave)}}, nil)
}

// DownloadFiles does the same for some of what is in a directory.
func (c *Client) DownloadFiles(ctx context.Context, id string, req *api.ArchiveRequest) (io.ReadCloser, error) {
	body, err := encode(req)
	if err != nil {
		return nil, err
	}
	return c.archive(ctx, http.MethodPost, id, nil, bytes.NewReader(body))
}

func (c *Client) archive(ctx context.Context, method, id string, query url.Values, body io.Reader, header ...string) (io.ReadCloser, error) {
	return c.open(ctx, method, c.session(id, "/archive", query), body, header...)
}
