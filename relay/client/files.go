// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// file sends a request about files of a session.
func file[Out any](ctx context.Context, c *Client, id, operation string, in any) (Out, error) {
	return request[Out](ctx, c, http.MethodPost, c.session(id, "/fs/"+operation, nil), in)
}

// ReadFile returns a part of a file.
func (c *Client) ReadFile(ctx context.Context, id string, req *api.FileRead) (api.FileContent, error) {
	return file[api.FileContent](ctx, c, id, "read", req)
}

// WriteFile writes a file.
func (c *Client) WriteFile(ctx context.Context, id string, req *api.FileWrite) (api.FileWritten, error) {
	return file[api.FileWritten](ctx, c, id, "write", req)
}

// EditFile replaces text in a file: all requested edits, or none.
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

// StatFile describes the file at a path.
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

// MakeDirectory makes a directory.
func (c *Client) MakeDirectory(ctx context.Context, id string, req *api.FileMkdir) (api.FileWritten, error) {
	return file[api.FileWritten](ctx, c, id, "mkdir", req)
}

// FilePart is a regular file or a part of it, which the caller must close. It is complete if it is read to io.EOF.
type FilePart struct {
	io.ReadCloser
	Length     int64 // bytes to read
	ModifiedAt time.Time
}

// OpenFile returns a file of any size from offset on; a negative offset means so many bytes at its end. An offset beyond
// the end is an *Error of status 416.
func (c *Client) OpenFile(ctx context.Context, id, path string, offset int64) (*FilePart, error) {
	var header []string
	if offset > 0 {
		header = []string{"Range", fmt.Sprintf("bytes=%d-", offset)}
	} else if offset < 0 {
		header = []string{"Range", fmt.Sprintf("bytes=%d", offset)}
	}
	resp, err := c.send(ctx, http.MethodGet, c.session(id, "/file", url.Values{"path": {path}}), nil, header...)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		defer resp.Body.Close()
		return nil, refusal(resp)
	}
	modified, _ := http.ParseTime(resp.Header.Get("Last-Modified")) // the zero time if there is none
	return &FilePart{ReadCloser: resp.Body, Length: resp.ContentLength, ModifiedAt: modified}, nil
}

// PutFile says how PutFile writes a file.
type PutFile struct {
	Path         string
	Permissions  string            // octal, of a new file; default "0644"
	XattrsPrefix string            // replaces attributes with this prefix; "": keep all
	Xattrs       map[string]string // by full name, values in base64
}

// PutFile streams content of any length to a file. An existing file is truncated in place, and what was written before
// an error stays.
func (c *Client) PutFile(ctx context.Context, id string, to PutFile, content io.Reader) (done api.FileWritten, err error) {
	query := queryOf("path", to.Path, "permissions", to.Permissions, "xattrs_prefix", to.XattrsPrefix)
	if len(to.Xattrs) > 0 {
		text, err := json.Marshal(to.Xattrs)
		if err != nil {
			return done, err
		}
		query.Set("xattrs", string(text))
	}
	return request[api.FileWritten](ctx, c, http.MethodPut, c.session(id, "/file", query), content)
}

// WatchFiles says what WatchFiles watches.
type WatchFiles struct {
	Path      string // directory; default /workspace
	Recursive bool   // also in the directories below
	Entries   bool   // describe files in events
}

// WatchFiles passes events of a directory to each until the directory is gone, each fails or ctx ends. The first event
// says that the watch has begun; an *Error may end it.
func (c *Client) WatchFiles(ctx context.Context, id string, o WatchFiles, each func(*api.FileEvent) error) error {
	body, err := c.open(ctx, http.MethodGet, c.session(id, "/fs/watch", queryOf("path", o.Path, "recursive", yes(o.Recursive), "entries", yes(o.Entries))), nil)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 { // a heartbeat
			continue
		}
		var e api.FileEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("event: %w", err)
		}
		if e.Event == api.FileEventError && e.Problem != nil {
			return &Error{Problem: *e.Problem}
		}
		if err := each(&e); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Upload configures the extraction of an archive in a session.
type Upload struct {
	Path         string // directory; made if missing
	Overwrite    bool   // replace existing files
	OutwardLinks bool   // accept symbolic links that lead out of the directory
}

// UploadArchive extracts a tar archive, which may be compressed by gzip, into a directory: all of it or nothing.
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
// complete if it is read to io.EOF. With leave, unreadable files are left out, and the archive says so.
func (c *Client) DownloadArchive(ctx context.Context, id, path string, leave bool) (io.ReadCloser, error) {
	return c.archive(ctx, http.MethodGet, id, url.Values{"path": {path}, "leave_out": {strconv.FormatBool(leave)}}, nil)
}

// DownloadFiles is DownloadArchive for some files of a directory.
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
