// SPDX-License-Identifier: Apache-2.0

// The token file holds the hashes of bearer tokens, never the tokens.

package access

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/boxd-dev/boxd/internal/durable"
)

// Bounds of the file.
const (
	maxFile   = 4 << 20
	maxTokens = 4096
)

// TokenPrefix begins every token, so that a leaked one is recognised.
const TokenPrefix = "boxd_"

// Token is a table [[token]] of the file.
type Token struct {
	Name      string    `toml:"name"`      // shown in its place: never the token itself
	SHA256    string    `toml:"sha256"`    // of the token, 64 hexadecimal digits
	Principal string    `toml:"principal"` // a table [principals.NAME] of box.toml
	Role      Role      `toml:"role"`      // the highest role of its bearer; left out: the principal's
	Routes    []string  `toml:"routes"`    // route patterns, "GET /v1/sessions/*"; left out: all
	Expires   time.Time `toml:"expires"`   // left out: never

	hash [sha256.Size]byte
}

// NewToken returns a new token, and its hash for the file.
func NewToken() (secret, hash string) {
	secret = TokenPrefix + rand.Text() + rand.Text()
	sum := sha256.Sum256([]byte(secret))
	return secret, hex.EncodeToString(sum[:])
}

// Tokens is a set of tokens. The zero Tokens is empty.
type Tokens struct{ list []Token }

// Len returns the number of tokens.
func (s *Tokens) Len() int { return len(s.list) }

// ParseTokens parses the text of a token file.
func ParseTokens(text string) (*Tokens, error) {
	var file struct {
		Token []Token `toml:"token"`
	}
	meta, err := toml.Decode(text, &file)
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		return nil, fmt.Errorf("line %d: %s", parse.Position.Line, parse.Message)
	}
	if err != nil {
		return nil, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("unknown key %q", unknown[0].String())
	}
	if len(file.Token) > maxTokens {
		return nil, fmt.Errorf("%d tokens: at most %d are allowed", len(file.Token), maxTokens)
	}
	names, hashes := map[string]bool{}, map[[sha256.Size]byte]bool{}
	for i := range file.Token {
		t := &file.Token[i]
		if err := t.validate(); err != nil {
			return nil, fmt.Errorf("token %d %q: %w", i+1, t.Name, err)
		}
		if names[t.Name] || hashes[t.hash] {
			return nil, fmt.Errorf("token %d %q: another token has the same name or hash", i+1, t.Name)
		}
		names[t.Name], hashes[t.hash] = true, true
	}
	return &Tokens{file.Token}, nil
}

func (t *Token) validate() error {
	sum, err := hex.DecodeString(t.SHA256)
	switch {
	case t.Name == "" || len(t.Name) > 64 || strings.ContainsFunc(t.Name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return errors.New("name: must be 1 to 64 characters without spaces")
	case strings.HasPrefix(t.Name, certificatePrefix):
		return fmt.Errorf("name: must not begin with %s", certificatePrefix)
	case err != nil || len(sum) != sha256.Size:
		return errors.New("sha256: must be the 64 hexadecimal digits that boxctl token new prints")
	case t.Principal == "":
		return errors.New("principal: must be the name of a table [principals.NAME] of box.toml")
	}
	for _, r := range t.Routes {
		method, path, ok := strings.Cut(r, " ")
		if !ok || method == "" || !strings.HasPrefix(path, "/") || strings.Contains(strings.TrimSuffix(path, "*"), "*") {
			return fmt.Errorf(`routes: %q: must be a method and a path, such as "GET /v1/sessions/*"; * at the end of the path matches the rest, and the method * matches any`, r)
		}
	}
	copy(t.hash[:], sum)
	return nil
}

// ReadTokens reads a token file. A missing file has no tokens. isCredential says that it is one of systemd's credentials, which
// its group may read.
func ReadTokens(path string, isCredential bool) (*Tokens, error) {
	data, err := durable.ReadSecret(path, isCredential, maxFile)
	if errors.Is(err, os.ErrNotExist) {
		return &Tokens{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	s, err := ParseTokens(string(data))
	if err != nil {
		return nil, fmt.Errorf("tokens: %s: %w", path, err)
	}
	return s, nil
}

// JoinTokens returns the tokens of both sets.
func JoinTokens(a, b *Tokens) (*Tokens, error) {
	all := &Tokens{append(append([]Token{}, a.list...), b.list...)}
	names := map[string]bool{}
	for i := range all.list {
		if name := all.list[i].Name; names[name] {
			return nil, fmt.Errorf("tokens: two have the name %q", name)
		}
		names[all.list[i].Name] = true
	}
	return all, nil
}

// Find returns the token for a secret; nil: there is none. It takes the same time whichever token matches, and if none does.
func (s *Tokens) Find(secret string) *Token {
	sum := sha256.Sum256([]byte(secret))
	found := 0 // index plus one
	for i := range s.list {
		same := subtle.ConstantTimeCompare(s.list[i].hash[:], sum[:])
		found = subtle.ConstantTimeSelect(same, i+1, found)
	}
	if found == 0 {
		return nil
	}
	return &s.list[found-1]
}

// Each calls f for each token.
func (s *Tokens) Each(f func(*Token)) {
	for i := range s.list {
		f(&s.list[i])
	}
}

// Over reports whether the token has expired.
func (t *Token) Over(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// Allows reports whether the token covers a route, given by its pattern in the route table.
func (t *Token) Allows(pattern string) bool {
	if len(t.Routes) == 0 {
		return true
	}
	method, path, _ := strings.Cut(pattern, " ")
	for _, r := range t.Routes {
		m, p, _ := strings.Cut(r, " ")
		start, open := strings.CutSuffix(p, "*")
		if (m == "*" || m == method) && (open && strings.HasPrefix(path, start) || !open && path == p) {
			return true
		}
	}
	return false
}
