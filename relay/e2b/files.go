// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// Bounds of uploads.
const (
	maxParts         = 1000 // of one upload
	maxMetadata      = 4096 // bytes of the metadata of a file
	maxMetadataKey   = 246  // bytes of one key
	maxPathParameter = 16 << 10
	maxPartHeader    = 64 << 10 // bytes of the header of one part
)

// headerMetadata begins the headers that are the metadata of a file.
const headerMetadata = "X-Metadata-"

// files answers a request for the content of files.
func (s *Server) files(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	upload := r.Method == http.MethodPost
	s.recorded(w, r, sb.pass, call{route: map[bool]string{true: "POST", false: "GET"}[upload] + " /files", session: sb.ID, alters: upload}, func(w http.ResponseWriter, r *http.Request) error {
		user := r.URL.Query().Get(parameterUser)
		if user == session.RootUser && r.URL.Path != wire.FilesPath { // clients of Scalebox always say so, and programs that they start are the box user
			user = ""
		}
		if err := sb.become(user); err != nil {
			return refusal(http.StatusUnauthorized, err.Error())
		}
		release, err := sb.limits.Stream()
		if err != nil {
			return err
		}
		defer release()
		switch {
		case upload:
			return s.upload(w, r, sb)
		case r.Method == http.MethodGet || r.Method == http.MethodHead:
			return s.download(w, r, sb)
		}
		w.Header().Set("Allow", "GET, HEAD, POST")
		return refusal(http.StatusMethodNotAllowed, "method "+fault.Show(r.Method)+": must be GET, HEAD or POST")
	})
}

// requestPath is the path that a request for a file names.
func (sb *sandbox) requestPath(r *http.Request) (string, error) {
	text := r.URL.Query().Get(parameterPath)
	if rest, ok := strings.CutPrefix(r.URL.Path, wire.DownloadPath); ok {
		text = "/" + rest
	}
	if text == "" || len(text) > maxPathParameter {
		return "", refusal(http.StatusBadRequest, "path: must be the path of a file")
	}
	return sb.path(text), nil
}

// fileRefusal is a failure of a file operation as HTTP has it.
func fileRefusal(sb *sandbox, at string, err error) error {
	if lost(sb.Session, err) {
		return wire.Gone(sb.ID)
	}
	f, ok := errors.AsType[*sessionfiles.Failure](err)
	if !ok {
		return err
	}
	status, ok := fileStatus()[f.Kind]
	switch {
	case f.Kind == files.IsDirectory:
		return refusal(http.StatusBadRequest, fmt.Sprintf("path %s is a directory", fault.Show(at)))
	case !ok:
		status = http.StatusBadRequest
	}
	return refusal(status, f.Error())
}

// fileStatus has what is another status than that of a bad request.
func fileStatus() map[files.Kind]int {
	return map[files.Kind]int{
		files.NotFound: http.StatusNotFound, files.NoSpace: http.StatusInsufficientStorage, files.NotPermitted: http.StatusForbidden,
		files.ReadOnly: http.StatusForbidden, files.Broken: http.StatusInternalServerError,
	}
}

// download sends a file, or the part of it that was asked for.
func (s *Server) download(w http.ResponseWriter, r *http.Request, sb *sandbox) error {
	at, err := sb.requestPath(r)
	if err != nil {
		return err
	}
	zipped, err := encoding(r.Header.Values("Accept-Encoding"))
	if err != nil {
		return err
	}
	file, err := sb.described(r.Context(), at)
	if rest, ok := strings.CutPrefix(r.URL.Path, wire.DownloadPath); ok && err != nil { // whose path may have begun at the home directory
		if other, otherErr := sb.described(r.Context(), sb.path(rest)); otherErr == nil {
			at, file, err = sb.path(rest), other, nil
		}
	}
	if err != nil {
		return fileRefusal(sb, at, err)
	}
	h := w.Header()
	tag := describe(h, at, file)
	switch relay.Precondition(r.Header, file) {
	case http.StatusPreconditionFailed:
		return refusal(http.StatusPreconditionFailed, fmt.Sprintf("path %s: has changed, its ETag is %s now", fault.Show(at), tag))
	case http.StatusNotModified:
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	part, err := ranged(r, file)
	if err != nil {
		h.Set("Content-Range", "bytes */"+strconv.FormatInt(file.Size, 10))
		return err
	}
	get := &files.Get{Path: []byte(at)}
	if part != nil {
		get.Offset, get.Length = part.from, part.length
	}
	open, body, err := sessionfiles.ReadStream(r.Context(), sb.Session, sb.as(), get)
	if err != nil {
		return fileRefusal(sb, at, err)
	}
	defer body.Close()
	tag = describe(h, at, &open.File) // which may be another one than before
	if part != nil && open.Length == 0 {
		h.Set("Content-Range", "bytes */"+strconv.FormatInt(open.File.Size, 10))
		return refusal(http.StatusRequestedRangeNotSatisfiable, fmt.Sprintf("Range = %s: the file has %d bytes", fault.Show(r.Header.Get("Range")), open.File.Size))
	}
	status := http.StatusOK
	switch {
	case part != nil:
		status = http.StatusPartialContent
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", open.Offset, open.Offset+open.Length-1, open.File.Size))
		h.Set("Content-Length", strconv.FormatInt(open.Length, 10))
	case zipped:
		h.Set("Content-Encoding", "gzip")
		h.Set("ETag", "W/"+tag) // these are other bytes
	default:
		h.Set("Content-Length", strconv.FormatInt(open.Length, 10))
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	return send(w, body, zipped && part == nil)
}

// describe sets the headers of the answer with a file, and returns its entity tag.
func describe(h http.Header, at string, file *files.Entry) string {
	h.Set("Content-Type", contentType(at))
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(at)}))
	h.Set("Vary", "Accept-Encoding")
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", file.Time.UTC().Format(http.TimeFormat))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox") // a page of a box is not to run with boxd's address
	tag := relay.EntityTag(file)
	h.Set("ETag", tag)
	return tag
}

// described is what a path leads to.
func (sb *sandbox) described(ctx context.Context, at string) (*files.Entry, error) {
	answer, _, err := sessionfiles.Do(ctx, sb.Session, sb.as(), &files.Request{Stat: &files.Stat{Path: []byte(at), Follow: true}}, nil)
	if err != nil {
		return nil, err
	}
	return answer.Stat, nil
}

// send copies a file to its client. One that cannot be sent whole breaks the connection off, which is how HTTP says so.
func send(w http.ResponseWriter, body io.Reader, zipped bool) error {
	var err error
	if zipped {
		out := gzip.NewWriter(w)
		if _, err = io.Copy(out, body); err == nil {
			err = out.Close()
		}
	} else {
		_, err = io.Copy(w, body)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// contentType is that of a file by its name.
func contentType(at string) string {
	t := mime.TypeByExtension(path.Ext(at))
	if t == "" {
		return "application/octet-stream"
	}
	return t
}

// encoding tells whether a client takes gzip. One that takes neither that nor the file as it is is refused.
func encoding(accept []string) (zipped bool, err error) {
	plain := true
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, parameter, _ := strings.Cut(strings.TrimSpace(part), ";")
		quality := 1.0
		if text, ok := strings.CutPrefix(strings.ReplaceAll(parameter, " ", ""), "q="); ok {
			if q, err := strconv.ParseFloat(text, 64); err == nil {
				quality = q
			}
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip":
			zipped = quality > 0
		case "identity":
			plain = quality > 0
		case "*":
			if quality == 0 {
				plain = false
			}
		}
	}
	if !zipped && !plain {
		return false, refusal(http.StatusNotAcceptable, "Accept-Encoding: must allow gzip or identity")
	}
	return zipped && !plain, nil // what goes through a loopback is not worth packing unless it has to be
}

// byteRange is a part of a file.
type byteRange struct{ from, length int64 }

// ranged is the part of a file that a request asks for; nil: all of it, as also of several parts, and of a range that is none
// (RFC 9110, section 14.2).
func ranged(r *http.Request, file *files.Entry) (*byteRange, error) {
	offset, length, ok := relay.ParseRange(r.Header.Get("Range"))
	if since := r.Header.Get("If-Range"); !ok || since != "" && !relay.Unchanged(since, file) {
		return nil, nil //nolint:nilnil // all of it
	}
	if offset < 0 { // so many at the end
		offset = file.Size - min(-offset, file.Size)
	}
	if offset >= file.Size {
		return nil, refusal(http.StatusRequestedRangeNotSatisfiable, fmt.Sprintf("Range = %s: the file has %d bytes", fault.Show(r.Header.Get("Range")), file.Size))
	}
	if rest := file.Size - offset; length == 0 || length > rest {
		length = rest
	}
	return &byteRange{offset, length}, nil
}

// written describes a file that was written.
type written struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload writes the files of a request.
func (s *Server) upload(w http.ResponseWriter, r *http.Request, sb *sandbox) error {
	attributes, err := fileMetadata(r.Header)
	if err != nil {
		return err
	}
	conn := http.NewResponseController(w)
	r.Body = &timedBody{ReadCloser: r.Body, conn: conn, release: func() {}}
	var body io.Reader = r.Body
	switch coding := strings.ToLower(r.Header.Get("Content-Encoding")); coding {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			return refusal(http.StatusBadRequest, "Content-Encoding = \"gzip\": the body is not packed by gzip")
		}
		body = unpacked
	default:
		return refusal(http.StatusUnsupportedMediaType, "Content-Encoding = "+fault.Show(coding)+": must be gzip, or left out")
	}
	media, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.Header.Get("Content-Type") != "" {
		return refusal(http.StatusUnsupportedMediaType, "Content-Type: must be multipart/form-data or application/octet-stream")
	}
	u := &uploading{server: s, w: w, r: r, sb: sb, attributes: attributes, seen: map[string]bool{}}
	if media == "multipart/form-data" {
		heads := &headReader{Reader: body}
		err = u.parts(r.Context(), multipart.NewReader(heads, parameters["boundary"]), heads)
	} else {
		var at string
		if at, err = sb.requestPath(r); err == nil {
			err = u.write(r.Context(), at, body)
		}
	}
	if err != nil && r.Context().Err() != nil { // who may not go on is not waited for
		_ = conn.SetReadDeadline(time.Now()) // every connection of ours has deadlines
	}
	if err != nil {
		return err
	}
	if r.URL.Path == wire.UploadPath {
		reply(w, http.StatusOK, u.files[0])
		return nil
	}
	reply(w, http.StatusOK, u.files)
	return nil
}

// uploading is an upload under way.
type uploading struct {
	server     *Server
	w          http.ResponseWriter
	r          *http.Request
	sb         *sandbox
	attributes map[string][]byte
	seen       map[string]bool
	files      []written
}

// parts writes the files of a form. What was written before one that cannot be stays.
func (u *uploading) parts(ctx context.Context, form *multipart.Reader, heads *headReader) error {
	named := u.r.URL.Query().Get(parameterPath)
	for n := 0; ; n++ {
		part, err := heads.next(form)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return refusal(http.StatusBadRequest, "not a form, or truncated: "+err.Error())
		}
		if n == maxParts {
			return refusal(http.StatusBadRequest, fmt.Sprintf("the form has more than %d parts", maxParts))
		}
		name, filename := disposition(part)
		switch {
		case name == parameterPath && filename == "":
			text, err := io.ReadAll(io.LimitReader(part, maxPathParameter))
			if err != nil {
				return refusal(http.StatusBadRequest, "the form ends early: "+err.Error())
			}
			if !u.r.URL.Query().Has(parameterPath) { // which may be what was signed
				named = string(text)
			}
			continue
		case name != "file":
			continue
		case named != "":
			filename = named
		}
		if filename == "" {
			return refusal(http.StatusBadRequest, "a part has no filename, and the request no path")
		}
		if err := u.write(ctx, u.sb.path(filename), part); err != nil {
			return err
		}
	}
	if len(u.files) == 0 {
		return refusal(http.StatusBadRequest, "the form has no part named file")
	}
	return nil
}

// headReader reads a form, of which net/http would hold the header of a part in memory whatever its size.
type headReader struct {
	io.Reader

	in   bool // a header, and what precedes it
	left int  // bytes that it may still have
	part *multipart.Part
}

// errLongHeader ends a form.
var errLongHeader = fmt.Errorf("the header of a part has more than %d bytes", maxPartHeader)

// Read reads on.
func (h *headReader) Read(p []byte) (int, error) {
	if !h.in {
		return h.Reader.Read(p)
	}
	if h.left == 0 {
		return 0, errLongHeader
	}
	n, err := h.Reader.Read(p[:min(len(p), h.left)])
	h.left -= n
	return n, err
}

// next is the next part of the form, once what is left of the one before has been passed over.
func (h *headReader) next(form *multipart.Reader) (*multipart.Part, error) {
	if h.part != nil {
		if _, err := io.Copy(io.Discard, h.part); err != nil {
			return nil, err
		}
	}
	h.in, h.left = true, maxPartHeader
	defer func() { h.in = false }()
	var err error
	h.part, err = form.NextRawPart()
	return h.part, err
}

// disposition is the name of a part, and its filename with its directories.
func disposition(part *multipart.Part) (name, filename string) {
	_, parameters, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return "", ""
	}
	return parameters["name"], parameters["filename"]
}

// write writes one file.
func (u *uploading) write(ctx context.Context, at string, content io.Reader) error {
	if u.seen[at] {
		return refusal(http.StatusBadRequest, fmt.Sprintf("path %s is in the upload twice", fault.Show(at)))
	}
	u.seen[at] = true
	put := &files.Put{Path: []byte(at), Parents: true, Xattrs: &files.Xattrs{Prefix: metadataPrefix, Values: u.attributes}}
	if _, err := sessionfiles.WriteStream(ctx, u.sb.Session, u.sb.as(), put, content); err != nil {
		return fileRefusal(u.sb, at, err)
	}
	u.files = append(u.files, written{Name: path.Base(at), Path: at, Type: "file", Metadata: metadata(&files.Entry{Xattrs: u.attributes})})
	return nil
}

// fileMetadata is the metadata that a request gives the files that it writes, as extended attributes.
func fileMetadata(h http.Header) (map[string][]byte, error) {
	all, total := map[string][]byte{}, 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, headerMetadata)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		value := strings.Join(values, ",")
		if total += len(key) + len(value); len(key) == 0 || len(key) > maxMetadataKey || total > maxMetadata || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, refusal(http.StatusBadRequest, fmt.Sprintf("%s%s: must be printable ASCII, of a key of at most %d bytes, and all metadata at most %d bytes", headerMetadata, key, maxMetadataKey, maxMetadata))
		}
		all[metadataPrefix+key] = []byte(value)
	}
	return all, nil
}
