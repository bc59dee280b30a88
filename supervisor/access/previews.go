// SPDX-License-Identifier: Apache-2.0

// A preview token lets its bearer reach one port of one session for a time, and nothing else. boxd stores only the signing key.

package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
)

// previewFile holds the key, in boxd's state directory.
const previewFile = "previews.json"

// Bounds of tokens.
const (
	keySize   = 32
	maxGroups = 32      // of the maker; the rest are ignored
	maxText   = 1 << 10 // bytes of a name
	maxToken  = 6 << 10
)

// PreviewToken is the content of a preview token.
type PreviewToken struct {
	Owner   string // of the session
	Session string // its id
	Made    int64  // when it was created, in nanoseconds: tells sessions of one id apart
	Port    uint16
	Expires int64 // in seconds
	By      PreviewMaker
}

// PreviewMaker is who created a token, which is valid as long as the maker may use the session.
type PreviewMaker struct {
	Name     string // of the principal
	Token    string // name of the bearer token used; "": known by the kernel
	UID, GID uint32
	Groups   []uint32
}

// PreviewKey signs preview tokens, and derives sandbox tokens.
type PreviewKey struct{ key []byte }

// OpenPreviewKey reads the key in the state directory, and creates it (0600) if there is none.
func OpenPreviewKey(dir *os.Root) (*PreviewKey, error) {
	var record struct {
		Key []byte `json:"key"`
	}
	err := durable.ReadJSON(dir, previewFile, &record)
	if errors.Is(err, fs.ErrNotExist) {
		record.Key = make([]byte, keySize)
		_, _ = rand.Read(record.Key) // cannot fail
		err = durable.SyncJSON(dir, previewFile, &record)
	}
	if err == nil && len(record.Key) != keySize {
		err = fmt.Errorf("record %s: its key has %d bytes, not %d", previewFile, len(record.Key), keySize)
	}
	if err != nil {
		return nil, err
	}
	return &PreviewKey{record.Key}, nil
}

// errToken is the error for any text that is no token of ours, whatever is wrong with it.
var errToken = errors.New("not a preview link of this boxd")

// ErrPreviewOver means that a token has expired.
var ErrPreviewOver = errors.New("this preview link has expired")

// Sign returns the text of a token.
func (k *PreviewKey) Sign(t *PreviewToken) (string, error) {
	b := []byte{version}
	for _, text := range []string{t.Owner, t.Session, t.By.Name, t.By.Token} {
		if len(text) > maxText {
			return "", fmt.Errorf("a name has %d bytes, more than %d", len(text), maxText)
		}
		b = binary.BigEndian.AppendUint16(b, uint16(len(text)))
		b = append(b, text...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(t.Made))
	b = binary.BigEndian.AppendUint64(b, uint64(t.Expires))
	b = binary.BigEndian.AppendUint16(b, t.Port)
	b = binary.BigEndian.AppendUint32(b, t.By.UID)
	b = binary.BigEndian.AppendUint32(b, t.By.GID)
	groups := t.By.Groups[:min(len(t.By.Groups), maxGroups)]
	b = append(b, byte(len(groups)))
	for _, g := range groups {
		b = binary.BigEndian.AppendUint32(b, g)
	}
	return base64.RawURLEncoding.EncodeToString(append(b, k.mac(domainToken, b)...)), nil
}

// Read verifies and decodes a token. Its error reveals nothing about an invalid one.
func (k *PreviewKey) Read(text string, now time.Time) (*PreviewToken, error) {
	if len(text) > maxToken || strings.ContainsAny(text, "\r\n") { // which base64 ignores
		return nil, errToken
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < sha256.Size {
		return nil, errToken
	}
	b, mac := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if !hmac.Equal(mac, k.mac(domainToken, b)) {
		return nil, errToken
	}
	t, ok := parse(b)
	switch {
	case !ok:
		return nil, errToken
	case now.Unix() >= t.Expires:
		return nil, ErrPreviewOver
	}
	return t, nil
}

// version is the first byte of the signed data.
const version = 1

// parse decodes the signed data.
func parse(b []byte) (*PreviewToken, bool) {
	r := reader{b: b}
	t := &PreviewToken{}
	if r.number(1) != version {
		return nil, false
	}
	for _, text := range []*string{&t.Owner, &t.Session, &t.By.Name, &t.By.Token} {
		*text = string(r.take(int(r.number(2))))
	}
	t.Made, t.Expires, t.Port = int64(r.number(8)), int64(r.number(8)), uint16(r.number(2))
	t.By.UID, t.By.GID = uint32(r.number(4)), uint32(r.number(4))
	for range r.number(1) {
		t.By.Groups = append(t.By.Groups, uint32(r.number(4)))
	}
	return t, !r.short && len(r.b) == 0
}

type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.short = nil, true
		return nil
	}
	part := r.b[:n]
	r.b = r.b[n:]
	return part
}

func (r *reader) number(size int) (n uint64) {
	for _, b := range r.take(size) {
		n = n<<8 | uint64(b)
	}
	return n
}

// Domains of the key, so that what was signed for one purpose is not valid for another.
const (
	domainToken   = "boxd preview token\x00"
	domainSandbox = "boxd sandbox token\x00"
	domainHost    = "boxd preview host\x00"
)

func (k *PreviewKey) mac(domain string, b []byte) []byte {
	h := hmac.New(sha256.New, k.key)
	h.Write([]byte(domain))
	h.Write(b)
	return h.Sum(nil)
}

// SandboxToken returns the secret by which programs prove a right to one session, created at created (nanoseconds). purpose says
// which right. The result is always the same, so it need not be stored.
func (k *PreviewKey) SandboxToken(purpose, owner, session string, created int64) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(created))
	for _, text := range []string{purpose, owner, session} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
	}
	return hex.EncodeToString(k.mac(domainSandbox, b))
}

// hostPrefix and hostSuffix enclose the names of all previews: browsers resolve them to this host, and treat each as a site of
// its own.
const hostPrefix, hostSuffix = "bx-", ".localhost"

// Host returns the host name of a token's preview in a browser. Each port of a session has its own, so that its pages are of
// another origin than those of other ports and of boxd itself.
func (k *PreviewKey) Host(t *PreviewToken) string {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(t.Owner)))
	b = append(b, t.Owner+t.Session...)
	b = binary.BigEndian.AppendUint64(b, uint64(t.Made))
	b = binary.BigEndian.AppendUint16(b, t.Port)
	return hostPrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(k.mac(domainHost, b)[:20])) + hostSuffix
}

// IsPreviewHost reports whether a request for this host is for a preview, and so never for the API.
func IsPreviewHost(host string) bool {
	name, port, with := strings.Cut(host, ":")
	if with && (port == "" || len(port) > 5 || strings.Trim(port, "0123456789") != "") {
		return false
	}
	return strings.HasPrefix(name, hostPrefix) && strings.HasSuffix(name, hostSuffix) && !strings.ContainsAny(name[len(hostPrefix):len(name)-len(hostSuffix)], "./@%")
}
