// SPDX-License-Identifier: Apache-2.0

package client

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// An export is a tar archive: definitionEntry first, then the archives of all paths of the definition, the entries of the second one
// below "1/", and endEntry last, without which it is cut off.
const (
	definitionEntry = "definition.json"
	endEntry        = "end"
	exportFormat    = 1
	maxDefinition   = 64 << 20 // bytes
)

// unreadable ends the comment of an archive on an entry that the user of the box cannot read.
const unreadable = ": may not be read"

// Errors of exports and imports.
var (
	// ErrNoExport means that what Import reads is something else than an export.
	ErrNoExport = errors.New("this is no archive of boxctl export")
	// ErrUnreadable means that the user of the session cannot read a file of it.
	ErrUnreadable = errors.New(unreadable)
	// ErrFormat means that the export is one of another version.
	ErrFormat = errors.New("the archive has another format than is known here")
	// ErrOtherImage means that the image of the session is another one than at its export.
	ErrOtherImage = errors.New("the image is another one here")
	// ErrExists means that there is a session already with the id of the one to import.
	ErrExists = errors.New("a session of this id exists already")
)

// exported is the content of definitionEntry.
type exported struct {
	Format     int                   `json:"format"`
	Definition api.SessionDefinition `json:"definition"`
}

// ExportOptions changes what Export does.
type ExportOptions struct {
	LeaveOut bool // files that cannot be read, instead of failing
	// WithWorkspace exports the files of a named workspace that the session uses. They are the new session's own.
	WithWorkspace bool
	// Told is called with each thing that is left out. Its error ends the export.
	Told func(string) error
}

// Export writes an archive of which Import makes the same session: its definition, its files on disk and the processes that always
// restart. If it fails, the archive is cut off.
func (c *Client) Export(ctx context.Context, id string, w io.Writer, o ExportOptions) error {
	d, err := c.Definition(ctx, id, o.WithWorkspace)
	if err != nil {
		return err
	}
	for _, what := range d.LeftOut {
		if err := o.Told(what); err != nil {
			return err
		}
	}
	text, err := json.Marshal(&exported{Format: exportFormat, Definition: d})
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	if err := putEntry(out, definitionEntry, text); err != nil {
		return err
	}
	for i, path := range d.Paths {
		if err := c.exportPath(ctx, id, path, strconv.Itoa(i)+"/", o, out); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := putEntry(out, endEntry, nil); err != nil {
		return err
	}
	return out.Close()
}

func putEntry(w *tar.Writer, name string, text []byte) error {
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o600})
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

// exportPath writes the files of a directory of a session below a prefix.
func (c *Client) exportPath(ctx context.Context, id, path, prefix string, o ExportOptions, out *tar.Writer) error {
	r, err := c.DownloadArchive(ctx, id, path, true)
	if err != nil {
		return err
	}
	defer r.Close()
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			what := h.PAXRecords["comment"]
			if strings.HasSuffix(what, unreadable) && !o.LeaveOut {
				return fmt.Errorf("%s%w", strings.TrimSuffix(strings.TrimPrefix(what, "left out: "), unreadable), ErrUnreadable)
			}
			if err := o.Told(strings.TrimPrefix(what, "left out: ")); err != nil {
				return err
			}
			continue
		}
		h.Format = tar.FormatPAX // longer names than before may need it
		h.Name = prefix + h.Name
		if h.Typeflag == tar.TypeLink {
			h.Linkname = prefix + h.Linkname
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}

// ImportOptions changes what Import makes.
type ImportOptions struct {
	ID        string // of the new session; "": the one it had
	Placement any    // what a gateway is told of where to make it; nil: nothing
	// ToEnd reads the archive to the end of its reader, whose error counts, before its processes are started.
	ToEnd bool
}

// incompleteTTL is the time without use after which a session ends that is not whole: whoever imports it may die.
const incompleteTTL = quantity.Duration(5 * time.Minute)

// Import makes a new session of an export, or nothing. If the importer dies, what there is of it ends after five minutes. ErrNoExport and ErrExists are told apart with
// errors.Is. A skill that does not exist here is marked in the session, limits that are lower here are in its list.
func (c *Client) Import(ctx context.Context, r io.Reader, o ImportOptions) (s api.Session, err error) {
	from := &source{Reader: r}
	in := tar.NewReader(from)
	d, err := readDefinition(in)
	if err != nil {
		return s, cmp.Or(from.err, err) // what could not be read may be an export
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(d.Session, &fields); err != nil {
		return s, ErrNoExport
	}
	for name, value := range map[string]any{"id": o.ID, "placement": o.Placement} {
		if value != "" && value != nil {
			if fields[name], err = json.Marshal(value); err != nil {
				return s, err
			}
		}
	}
	// One that is made when nobody waits for it any more is removed below.
	s, isNew, err := requestNew[api.Session](context.WithoutCancel(ctx), c, http.MethodPost, target{path: "/v1/sessions"}, fields)
	if err != nil {
		return s, err
	}
	if !isNew {
		return s, fmt.Errorf("%s: %w", s.ID, ErrExists)
	}
	var ttl *quantity.Duration
	if err = ctx.Err(); err == nil {
		ttl, err = c.shorten(ctx, &s, fields["ttl"])
	}
	if err == nil {
		err = c.sameImage(ctx, &s, d)
	}
	if err == nil {
		err = c.fill(ctx, s.ID, d, in)
	}
	if err == nil && o.ToEnd {
		_, err = io.Copy(io.Discard, from)
	}
	if err == nil {
		err = c.startAll(ctx, s.ID, d)
	}
	if err == nil && ttl != nil {
		s, err = c.ChangeSession(ctx, s.ID, &api.SessionChange{Patch: limits.Patch{TTL: ttl}})
	}
	if err != nil {
		return s, errors.Join(err, c.undo(context.WithoutCancel(ctx), s.ID))
	}
	return s, nil
}

// source remembers why it could not be read.
type source struct {
	io.Reader

	err error
}

// Read reads on.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// shorten lets a session that is not whole end soon. It returns the ttl that the whole one is to have; nil: the one it has, also where
// policy allows no other.
func (c *Client) shorten(ctx context.Context, s *api.Session, rawTTL json.RawMessage) (*quantity.Duration, error) {
	if s.TTL > 0 && s.TTL <= incompleteTTL {
		return nil, nil //nolint:nilnil // it ends soon enough
	}
	_, err := c.ChangeSession(ctx, s.ID, &api.SessionChange{Patch: limits.Patch{TTL: new(incompleteTTL)}})
	if e, ok := errors.AsType[*Error](err); ok && e.Status < http.StatusInternalServerError {
		return nil, nil //nolint:nilnil // its ttl is locked, or the token is for other routes
	}
	var ttl *quantity.Duration
	if json.Unmarshal(rawTTL, &ttl) != nil || ttl == nil {
		ttl = &s.TTL
	}
	return ttl, err
}

// How often the removal of a session that could not be made whole is tried, and how long it waits before the second time.
const (
	undoTries = 5
	undoPause = time.Second
)

// undo removes a session. Whoever has it may just be restarted.
func (c *Client) undo(ctx context.Context, id string) (err error) {
	for i := range undoTries {
		if err = c.DeleteSession(ctx, id); err == nil || errors.Is(err, NotFound) {
			return nil
		}
		select {
		case <-time.After(undoPause << i):
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("session %s is not whole, and cannot be removed: %w", id, err)
}

// sameImage refuses a session whose image is another one than at its export.
func (c *Client) sameImage(ctx context.Context, s *api.Session, d *api.SessionDefinition) error {
	definition, err := c.Definition(ctx, s.ID, false)
	if err == nil && definition.ImageDigest != d.ImageDigest {
		err = fmt.Errorf("%s: %w: %s and not %s", s.Image, ErrOtherImage, cmp.Or(definition.ImageDigest, "none"), cmp.Or(d.ImageDigest, "none"))
	}
	return err
}

// readDefinition reads the beginning of an export.
func readDefinition(in *tar.Reader) (*api.SessionDefinition, error) {
	h, err := in.Next()
	if err != nil || h.Name != definitionEntry || h.Size > maxDefinition {
		return nil, ErrNoExport
	}
	var head exported
	if err := json.NewDecoder(in).Decode(&head); err != nil {
		return nil, ErrNoExport
	}
	if head.Format != exportFormat {
		return nil, fmt.Errorf("%w: %d and not %d", ErrFormat, head.Format, exportFormat)
	}
	return &head.Definition, nil
}

// fill gives a new session the files of an export.
func (c *Client) fill(ctx context.Context, id string, d *api.SessionDefinition, in *tar.Reader) error {
	h, err := nextEntry(in)
	for i, path := range d.Paths {
		if err != nil {
			return err
		}
		if h, err = c.fillPath(ctx, id, path, strconv.Itoa(i)+"/", h, in); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if err == nil && h.Name != endEntry {
		err = fmt.Errorf("the archive has an entry %s, which is of none of its directories", strconv.Quote(h.Name))
	}
	return err
}

// startAll starts the processes of an export.
func (c *Client) startAll(ctx context.Context, id string, d *api.SessionDefinition) error {
	for _, p := range slices.Sorted(maps.Keys(d.Processes)) {
		var req api.ProcessRequest
		if err := json.Unmarshal(d.Processes[p], &req); err != nil {
			return ErrNoExport
		}
		if _, _, err := c.StartProcess(ctx, id, p, &req); err != nil {
			return fmt.Errorf("process %s: %w", strconv.Quote(p), err)
		}
	}
	return nil
}

// nextEntry reads the next entry of an export, which has one more until its last.
func nextEntry(in *tar.Reader) (*tar.Header, error) {
	h, err := in.Next()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("the archive is cut off")
	}
	return h, err
}

// fillPath gives a session the files of one directory: h, and those that follow with the same prefix. It returns the next entry.
func (c *Client) fillPath(ctx context.Context, id, path, prefix string, h *tar.Header, in *tar.Reader) (*tar.Header, error) {
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() { // ends with the pipe
		_, err := c.UploadArchive(ctx, id, Upload{Path: path, Overwrite: true, OutwardLinks: true}, r)
		r.CloseWithError(cmp.Or(err, errHungUp))
		sent <- err
	}()
	out := tar.NewWriter(w)
	next, err := h, error(nil)
	for err == nil && strings.HasPrefix(next.Name, prefix) {
		header := *next
		header.Name = strings.TrimPrefix(header.Name, prefix)
		if header.Typeflag == tar.TypeLink {
			header.Linkname = strings.TrimPrefix(header.Linkname, prefix)
		}
		if err = out.WriteHeader(&header); err == nil {
			_, err = io.Copy(out, in)
		}
		if err == nil {
			next, err = nextEntry(in)
		}
	}
	if err == nil {
		err = out.Close()
	}
	w.CloseWithError(err)
	if refused := <-sent; refused != nil && (err == nil || errors.Is(err, refused) || errors.Is(err, io.ErrClosedPipe)) {
		return nil, refused
	}
	return next, err
}
