// SPDX-License-Identifier: Apache-2.0

// A fleet gateway makes requests for callers that it has authenticated. With each request it sends an assertion of the caller's
// identity, signed with its key: valid for one request, on one node, for a few seconds.

package access

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// AssertionScheme begins the value of an Authorization header that carries an assertion.
const AssertionScheme = "Boxd-Caller "

// holderScheme begins a statement about a token instead of a caller: the token belongs to the principal and is valid. It does not authenticate
// the caller, who needs another credential, such as the access token of a sandbox.
const holderScheme = "Boxd-Holder "

// langBotScheme begins the statement that LangBot is let in as a principal. It opens LangBot's protocol, and no route of the API.
const langBotScheme = "Boxd-Langbot "

// HeaderGateway carries what a gateway has signed, where that is not the caller of boxd's API.
const HeaderGateway = "Boxd-Gateway"

// Bounds of an assertion.
const (
	// AssertionLife is how long a gateway's assertion is valid.
	AssertionLife = 30 * time.Second
	// maxAssertionLife is the longest validity that a node accepts, and so how long it remembers a nonce.
	maxAssertionLife = 2 * time.Minute
	// assertionSkew is how far the node's clock may be behind the gateway's.
	assertionSkew = 5 * time.Second
	maxAssertion  = 16 << 10
)

// signedAs begins the signed text, so that a signature made for another purpose is not valid for an assertion, and a statement about a
// token is not valid as the identity of a caller.
func signedAs(scheme string) string {
	switch scheme {
	case holderScheme:
		return "boxd holder 1\n"
	case langBotScheme:
		return "boxd langbot 1\n"
	}
	return "boxd caller 1\n"
}

// Assertion says who makes one request, according to the gateway that authenticated the caller. The times are by the node's
// clock, which the gateway knows from the node's announcements.
type Assertion struct {
	Gateway   string   `json:"gateway"`   // a table [fleet.gateways.NAME] of the node
	Node      string   `json:"node"`      // fleet.name of the node
	Principal string   `json:"principal"` // a table [principals.NAME] of the node
	Role      Role     `json:"role"`      // the highest the gateway gives the caller
	Token     string   `json:"token,omitempty"`
	Routes    []string `json:"routes,omitempty"` // that its token allows, as in Token
	Method    string   `json:"method"`           // of the request
	Target    string   `json:"target"`           // its path and query, as they are sent
	// Image says that it imports an image of the fleet, which callers may not.
	Image   bool      `json:"image,omitempty"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	Nonce   string    `json:"nonce"`
}

// Sign fills in nonce and times, and returns the value of the header Authorization. now is the node's clock. It fails with
// fault.Invalid if the target is too long.
func (a Assertion) Sign(key ed25519.PrivateKey, now time.Time) (string, error) {
	return a.sign(AssertionScheme, key, now)
}

// SignHolder signs a statement about a token, which does not authenticate a caller. Without a principal it only identifies the
// gateway.
func (a Assertion) SignHolder(key ed25519.PrivateKey, now time.Time) (string, error) {
	return a.sign(holderScheme, key, now)
}

// SignLangBot signs that LangBot is let in as a principal, for LangBot's protocol alone.
func (a Assertion) SignLangBot(key ed25519.PrivateKey, now time.Time) (string, error) {
	return a.sign(langBotScheme, key, now)
}

// IsLangBot reports whether the values of HeaderGateway say that a request is one of LangBot's protocol.
func IsLangBot(signed []string) bool {
	return len(signed) > 0 && strings.HasPrefix(signed[0], langBotScheme)
}

func (a Assertion) sign(scheme string, key ed25519.PrivateKey, now time.Time) (string, error) {
	a.Nonce, a.Issued, a.Expires = rand.Text(), now.UTC(), now.UTC().Add(AssertionLife)
	text, err := json.Marshal(a)
	if err != nil {
		return "", fmt.Errorf("sign the caller's identity: %w", err)
	}
	signature := ed25519.Sign(key, append([]byte(signedAs(scheme)), text...))
	value := scheme + base64.RawURLEncoding.EncodeToString(text) + "." + base64.RawURLEncoding.EncodeToString(signature)
	if len(value) > maxAssertion {
		return "", fault.Errorf(fault.Invalid, "the signed identity of the caller has %d bytes, more than %d: the path with its query, or the routes of the token, are too long", len(value), maxAssertion).
			WithHint("send a shorter address")
	}
	return value, nil
}

// errNoAssertion means that the header holds no assertion.
var errNoAssertion = errors.New("the header has no signed caller identity")

// readAssertion reads an assertion and verifies that one of the gateways signed it. It checks nothing else.
func readAssertion(scheme string, values []string, gateways map[string]Gateway) (*Assertion, error) {
	value, ok := strings.CutPrefix(values[0], scheme)
	first, second, two := strings.Cut(value, ".")
	if len(values) > 1 || !ok || !two || len(value) > maxAssertion {
		return nil, errNoAssertion
	}
	text, err := base64.RawURLEncoding.DecodeString(first)
	signature, err2 := base64.RawURLEncoding.DecodeString(second)
	if err := errors.Join(err, err2); err != nil {
		return nil, errNoAssertion
	}
	var a Assertion
	if json.Unmarshal(text, &a) != nil {
		return nil, errNoAssertion
	}
	g, ok := gateways[a.Gateway]
	if !ok {
		return nil, fmt.Errorf("the gateway %q has no table in [fleet.gateways]", a.Gateway)
	}
	if !ed25519.Verify(g.public, append([]byte(signedAs(scheme)), text...), signature) {
		return nil, fmt.Errorf("it is not signed with the key of the gateway %q", a.Gateway)
	}
	return &a, nil
}

// nonces are those of the assertions still valid. An assertion is good for one request.
type nonces struct {
	until map[string]time.Time
	swept time.Time
}

// maxNonces bounds them, and so the requests from gateways that a node answers within the life of an assertion.
const maxNonces = 1 << 18

// use records a nonce. It returns false if the nonce was used before, or if there are too many.
func (n *nonces) use(nonce string, until, now time.Time) bool {
	if n.until == nil {
		n.until = map[string]time.Time{}
	}
	if now.Sub(n.swept) > AssertionLife || now.Before(n.swept) {
		n.swept = now
		for other, expires := range n.until {
			if expires.Before(now) {
				delete(n.until, other)
			}
		}
	}
	if _, used := n.until[nonce]; used || len(n.until) >= maxNonces {
		return false
	}
	n.until[nonce] = until
	return true
}
