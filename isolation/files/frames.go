// SPDX-License-Identifier: Apache-2.0

package files

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A frame is a kind, the length of its payload in four bytes, little-endian, and the payload.
const (
	frameRequest byte = 'q' // a Request
	frameData    byte = 'd' // a piece of a file or an archive, in either direction
	frameEnd     byte = 'z' // the end of the data of a request
	frameNotice  byte = 'n' // a Notice
	frameAnswer  byte = 'a' // an Answer, the last frame
	headerSize        = 5
)

// ErrMalformed means that boxfiles, or a program in its place, sent malformed frames.
var ErrMalformed = errors.New("malformed answer of boxfiles")

// ErrTooMuch means that it sent more than was requested.
var ErrTooMuch = errors.New("boxfiles answered more than was asked for")

func frame(kind byte, payload []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(payload))
	b[0] = kind
	binary.LittleEndian.PutUint32(b[1:], uint32(len(payload)))
	return append(b, payload...)
}

// Encode returns a request's frame.
func (r *Request) Encode() ([]byte, error) {
	payload, err := json.Marshal(r)
	if err == nil && len(payload) > maxRequest {
		err = fmt.Errorf("a request of %d bytes, more than %d", len(payload), maxRequest)
	}
	return frame(frameRequest, payload), err
}

// ReadRequest reads a request. A Reader reads the data that follows.
func ReadRequest(r io.Reader) (*Request, error) {
	kind, length, err := header(r)
	if err != nil {
		return nil, err
	}
	if kind != frameRequest || length > maxRequest {
		return nil, errors.New("not a request")
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, err
	}
	req := &Request{}
	return req, json.Unmarshal(payload, req)
}

func header(r io.Reader) (kind byte, length int, err error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, 0, err
	}
	return h[0], int(binary.LittleEndian.Uint32(h[1:])), nil
}

// Reader reads the data that follows a request. It ends with io.EOF only if the data is complete.
type Reader struct {
	from io.Reader
	left int // bytes left of the frame
	eof  bool
}

// NewReader returns a Reader of the data in from.
func NewReader(from io.Reader) *Reader { return &Reader{from: from} }

func (r *Reader) Read(p []byte) (int, error) {
	for r.left == 0 && !r.eof && len(p) > 0 {
		kind, length, err := header(r.from)
		switch {
		case errors.Is(err, io.EOF):
			return 0, io.ErrUnexpectedEOF
		case err != nil:
			return 0, err
		case kind == frameEnd && length == 0:
			r.eof = true
		case kind == frameData && length <= MaxData:
			r.left = length
		default:
			return 0, errors.New("not what follows a request")
		}
	}
	if r.eof {
		return 0, io.EOF
	}
	n, err := r.from.Read(p[:min(len(p), r.left)])
	r.left -= n
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Writer writes frames: those of an answer, or the data that follows a request.
type Writer struct {
	to io.Writer
}

// NewWriter returns a Writer of frames to to.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write writes p as frames of data.
func (w *Writer) Write(p []byte) (int, error) {
	for piece := range slices.Chunk(p, MaxData) {
		if _, err := w.to.Write(frame(frameData, piece)); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// End marks the end of the data of a request.
func (w *Writer) End() error {
	_, err := w.to.Write(frame(frameEnd, nil))
	return err
}

// Answer writes the last frame.
func (w *Writer) Answer(a *Answer) error {
	payload, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if len(payload) > MaxAnswer {
		payload, err = json.Marshal(&Answer{Failure: &Failure{
			Kind: TooMany, Text: fmt.Sprintf("the answer has %d bytes, more than %d", len(payload), MaxAnswer), Hint: "ask for less: a lower limit, or a narrower path",
		}})
		if err != nil {
			return err
		}
	}
	_, err = w.to.Write(frame(frameAnswer, payload))
	return err
}

// maxNotice bounds the payload of a notice, in bytes.
const maxNotice = 1 << 20

// Notice writes a notice.
func (w *Writer) Notice(n *Notice) error {
	payload, err := json.Marshal(n)
	if err == nil && len(payload) > maxNotice {
		err = fmt.Errorf("a notice of %d bytes, more than %d", len(payload), maxNotice)
	}
	if err == nil {
		_, err = w.to.Write(frame(frameNotice, payload))
	}
	return err
}

// Receive reads an answer from an untrusted program, and writes the data before it to data. More
// than limit bytes of data are ErrTooMuch, and anything malformed is ErrMalformed. A Failure is no
// error here.
func Receive(r io.Reader, data io.Writer, limit int64) (*Answer, error) {
	in := NewIncoming(r)
	for {
		p, err := in.Next()
		switch {
		case err != nil:
			return nil, err
		case p.Answer != nil:
			return p.Answer, nil
		case p.Notice != nil:
			return nil, ErrMalformed
		}
		if limit -= int64(len(p.Data)); limit < 0 {
			return nil, ErrTooMuch
		}
		if _, err := data.Write(p.Data); err != nil {
			return nil, err
		}
	}
}

// Incoming reads what an untrusted program sends, piece by piece.
type Incoming struct {
	from io.Reader
	buf  []byte
}

// NewIncoming returns an Incoming that reads from r.
func NewIncoming(r io.Reader) *Incoming { return &Incoming{from: r, buf: make([]byte, MaxData)} }

// Piece is one part of what a program sends: Answer or Notice is set, or it is data.
type Piece struct {
	Answer *Answer // the last one
	Notice *Notice
	Data   []byte // valid until the next call of Next
}

// Next returns the next piece. Anything malformed is ErrMalformed.
func (i *Incoming) Next() (Piece, error) {
	kind, length, err := header(i.from)
	switch {
	case err != nil:
		return Piece{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	case kind == frameData && length <= MaxData:
		if _, err := io.ReadFull(i.from, i.buf[:length]); err != nil {
			return Piece{}, fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		return Piece{Data: i.buf[:length]}, nil
	case kind == frameNotice && length <= maxNotice:
		n := &Notice{}
		if err := payload(i.from, length, n); err != nil {
			return Piece{}, err
		}
		if !n.ok() {
			return Piece{}, fmt.Errorf("%w: an impossible notice", ErrMalformed)
		}
		return Piece{Notice: n}, nil
	case kind == frameAnswer && length <= MaxAnswer:
		a, err := lastFrame(i.from, length)
		return Piece{Answer: a}, err
	}
	return Piece{}, ErrMalformed
}

// payload reads a payload of JSON.
func payload(r io.Reader, length int, v any) error {
	text, err := io.ReadAll(io.LimitReader(r, int64(length))) // allocates for what has arrived, not for the length that was claimed
	if err == nil && len(text) < length {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

func lastFrame(r io.Reader, length int) (*Answer, error) {
	a := &Answer{}
	if err := payload(r, length, a); err != nil {
		return nil, err
	}
	err := a.check()
	if err == nil {
		if n, _ := r.Read(make([]byte, 1)); n > 0 {
			err = errors.New("more after the last frame")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return a, nil
}

// check checks the values of an answer.
func (a *Answer) check() error {
	given := 0
	for _, is := range []bool{a.Read != nil, a.Write != nil, a.Edit != nil, a.List != nil, a.Grep != nil, a.Stat != nil, a.Archive != nil, a.Snapshot != nil, a.Changes != nil, a.Discarded != nil, a.Done, a.Failure != nil} {
		if is {
			given++
		}
	}
	if given != 1 {
		return fmt.Errorf("%d answers", given)
	}
	ok := true
	switch {
	case a.Failure != nil:
		ok = a.Failure.ok()
	case a.Read != nil:
		ok = a.Read.File.ok() && a.Read.Offset >= 0 && a.Read.Next >= a.Read.Offset && a.Read.FirstLine >= 0 && a.Read.LastLine >= 0 && isCut(a.Read.Cut)
	case a.Write != nil:
		ok = a.Write.File.ok()
	case a.Edit != nil:
		ok = a.Edit.File.ok() && !slices.ContainsFunc(a.Edit.Edits, func(r Replaced) bool { return r.Count < 0 || r.Line < 0 })
	case a.List != nil:
		ok = isCut(a.List.Cut) && !slices.ContainsFunc(a.List.Entries, func(e Entry) bool { return !e.ok() })
	case a.Grep != nil:
		ok = a.Grep.ok()
	case a.Stat != nil:
		ok = a.Stat.ok()
	case a.Archive != nil:
		ok = a.Archive.Entries >= 0 && a.Archive.Bytes >= 0 && a.Archive.Skipped >= 0
	}
	if a.Snapshot != nil {
		ok = a.Snapshot.Entries >= 0 && a.Snapshot.Unread >= 0
	}
	if a.Changes != nil {
		ok = a.Changes.ok()
	}
	if a.Discarded != nil {
		ok = a.Discarded.Removed >= 0 && a.Discarded.Restored >= 0
	}
	if !ok {
		return errors.New("an impossible value")
	}
	return nil
}

func (e *Entry) ok() bool {
	digest, given := strings.CutPrefix(e.Digest, DigestPrefix)
	if e.Digest != "" && (!given || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "") {
		return false
	}
	if o := e.Owner; o != nil && (len(o.User) > MaxUserName || len(o.Group) > MaxUserName) {
		return false
	}
	if e.TargetType != "" && !slices.Contains(types(), e.TargetType) || e.TargetMode > 0o7777 {
		return false
	}
	return slices.Contains(types(), e.Type) && e.Size >= 0 && e.Mode <= 0o7777 && e.Time.Year() >= 0 && e.Time.Year() <= 9999
}

// MaxUserName bounds the name of a user or group, in bytes.
const MaxUserName = 256

func (n *Notice) ok() bool {
	if o := n.Opening; o != nil && (!o.File.ok() || o.Offset < 0 || o.Length < 0 || len(n.Events) > 0) {
		return false
	}
	for i := range n.Events {
		e := &n.Events[i]
		if !slices.Contains(eventKinds(), e.What) || e.Type != "" && !slices.Contains(types(), e.Type) || e.Entry != nil && !e.Entry.ok() {
			return false
		}
	}
	return true
}

func (g *GrepAnswer) ok() bool {
	for _, n := range []int{g.Matches, g.Searched, g.Binary, g.Large, g.Failed} {
		if n < 0 {
			return false
		}
	}
	for i := range g.Files {
		if slices.ContainsFunc(g.Files[i].Lines, func(l Line) bool { return l.Number < 0 || l.Column < 0 }) {
			return false
		}
	}
	return isCut(g.Cut)
}

// maxText bounds the texts of a Failure, in bytes: they come from a box, and people read them.
const maxText = 1 << 10

func (f *Failure) ok() bool {
	for _, text := range []string{f.Text, f.Hint, f.Field, f.Allowed} {
		if len(text) > maxText {
			return false
		}
	}
	return slices.Contains(kinds(), f.Kind)
}

func isCut(by string) bool {
	return by == "" || by == CutLines || by == CutBytes || by == CutEntries || by == CutFiles
}

// DigestPrefix names the hash function of a digest.
const DigestPrefix = "sha256:"
