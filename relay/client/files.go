// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// onFiles makes a request about files of a session.
func onFiles[Out any](ctx context.Context, c *Client, id, verb string, in any) (out Out, err error) {
	_, err = c.About(ctx, http.MethodPost, id, "/fs/"+verb, in, &out)
	return out, err
}

// About makes one request about a session: rest is what its path has after the id, with a query if it has one.
func (c *Client) About(ctx context.Context, method, id, rest string, in, out any) (status int, err error) {
	path, err := c.path(id, rest)
	if err != nil {
		return 0, err
	}
	return c.do(ctx, method, path, in, out)
}

// path is that of a session's route.
func (c *Client) path(id, rest string) (string, error) {
	if id == "" {
		return "", ErrNoID
	}
	path := "/v1/sessions/" + segment(id) + rest
	if c.Owner == "" {
		return path, nil
	}
	sep := "?"
	if strings.Contains(rest, "?") {
		sep = "&"
	}
	return path + sep + "owner=" + url.QueryEscape(c.Owner), nil
}

// ReadFile returns a part of a file.
func (c *Client) ReadFile(ctx context.Context, id string, req *api.FileRead) (api.FileContent, error) {
	return onFiles[api.FileContent](ctx, c, id, "read", req)
}

// WriteFile makes a content that of a file.
func (c *Client) WriteFile(ctx context.Context, id string, req *api.FileWrite) (api.FileWritten, error) {
	return onFiles[api.FileWritten](ctx, c, id, "write", req)
}

// EditFile replaces texts in a file: all that it is asked for, or none.
func (c *Client) EditFile(ctx context.Context, id string, req *api.FileEdit) (api.FileEdited, error) {
	return onFiles[api.FileEdited](ctx, c, id, "edit", req)
}

// GlobFiles finds files by name.
func (c *Client) GlobFiles(ctx context.Context, id string, req *api.FileGlob) (api.FileEntries, error) {
	return onFiles[api.FileEntries](ctx, c, id, "glob", req)
}

// GrepFiles finds lines in files.
func (c *Client) GrepFiles(ctx context.Context, id string, req *api.FileGrep) (api.FileMatches, error) {
	return onFiles[api.FileMatches](ctx, c, id, "grep", req)
}

// ListFiles lists a directory.
func (c *Client) ListFiles(ctx context.Context, id string, req *api.FileList) (api.FileEntries, error) {
	return onFiles[api.FileEntries](ctx, c, id, "list", req)
}

// StatFile describes what is at a path.
func (c *Client) StatFile(ctx context.Context, id string, req *api.FileStat) (api.File, error) {
	return onFiles[api.File](ctx, c, id, "stat", req)
}

// MoveFile renames a file or directory.
func (c *Client) MoveFile(ctx context.Context, id string, req *api.FileMove) error {
	_, err := onFiles[api.FileDone](ctx, c, id, "move", req)
	return err
}

// RemoveFile removes a file or directory.
func (c *Client) RemoveFile(ctx context.Context, id string, req *api.FileRemove) error {
	_, err := onFiles[api.FileDone](ctx, c, id, "remove", req)
	return err
}

// ChmodFile changes the mode of a file or directory.
func (c *Client) ChmodFile(ctx context.Context, id string, req *api.FileChmod) error {
	_, err := onFiles[api.FileDone](ctx, c, id, "chmod", req)
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
	answer, err := c.archive(ctx, http.MethodPut, id, query, archive)
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

func (c *Client) archive(ctx context.Context, method, id string, query url.Values, body io.Reader) (io.ReadCloser, error) {
	path, err := c.path(id, "/archive?"+query.Encode())
	if err != nil {
		return nil, err
	}
	return c.Open(ctx, method, path, body)
}

// Open asks for what comes as a stream, which the caller must close. Names and values of headers go with it.
func (c *Client) Open(ctx context.Context, method, path string, body io.Reader, header ...string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://boxd"+path, body)
	if err != nil {
		return nil, err
	}
	if method == http.MethodPut {
		req.Header.Set("Content-Type", "application/x-tar")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, simplify(err)
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return nil, errors.Join(err, problemOf(resp, data))
}
