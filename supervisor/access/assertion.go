// SPDX-License-Identifier: Apache-2.0

// A gateway of a fleet makes requests for callers it has authenticated. With each it sends an assertion of who that is,
// signed with its key: for one request, on one node, for a few seconds.

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
)

// AssertionScheme begins the value of the header Authorization that has an assertion.
const AssertionScheme = "Boxd-Caller "

// Bounds of an assertion.
const (
	// AssertionLife is how long a gateway's assertion holds.
	AssertionLife = 30 * time.Second
	// maxAssertionLife is the longest that a node accepts, and so how long it remembers one.
	maxAssertionLife = 2 * time.Minute
	// assertionSkew is how much earlier than the gateway's the node's clock may be.
	assertionSkew = 5 * time.Second
	maxAssertion  = 16 << 10
)

// signedAs begins what is signed, so that a signature for something else is none for an assertion.
const signedAs = "boxd caller 1\n"

// Assertion says who makes one request, in the words of the gateway that has authenticated the caller. The times are of
// the node's clock, which the gateway knows from what the node announces.
type Assertion struct {
	Gateway   string    `json:"gateway"`   // a table [fleet.gateways.NAME] of the node
	Node      string    `json:"node"`      // fleet.name of the node
	Principal string    `json:"principal"` // a table [principals.NAME] of the node
	Role      Role      `json:"role"`      // the most the caller is, by the gateway
	Token     string    `json:"token,omitempty"`
	Routes    []string  `json:"routes,omitempty"` // what its token is for, as in Token
	Method    string    `json:"method"`           // of the request
	Target    string    `json:"target"`           // its path and query, as they are sent
	Issued    time.Time `json:"issued"`
	Expires   time.Time `json:"expires"`
	Nonce     string    `json:"nonce"`
}

// Sign fills in nonce and times, and returns the value of the header Authorization. now is the node's clock.
func (a Assertion) Sign(key ed25519.PrivateKey, now time.Time) (string, error) {
	a.Nonce, a.Issued, a.Expires = rand.Text(), now.UTC(), now.UTC().Add(AssertionLife)
	text, err := json.Marshal(a)
	if err != nil {
		return "", fmt.Errorf("sign the caller's identity: %w", err)
	}
	signature := ed25519.Sign(key, append([]byte(signedAs), text...))
	value := AssertionScheme + base64.RawURLEncoding.EncodeToString(text) + "." + base64.RawURLEncoding.EncodeToString(signature)
	if len(value) > maxAssertion {
		return "", fmt.Errorf("sign the caller's identity: it has %d bytes, more than %d: the path, or the routes of the token, are too long", len(value), maxAssertion)
	}
	return value, nil
}

// errNoAssertion is for what is shown and is none.
var errNoAssertion = errors.New("what was shown is no signed caller identity")

// readAssertion reads an assertion whose signature one of the gateways has made. Nothing else of it has been looked at.
func readAssertion(values []string, gateways map[string]Gateway) (*Assertion, error) {
	value, ok := strings.CutPrefix(values[0], AssertionScheme)
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
	if !ed25519.Verify(g.public, append([]byte(signedAs), text...), signature) {
		return nil, fmt.Errorf("it is not signed with the key of the gateway %q", a.Gateway)
	}
	return &a, nil
}

// nonces are those of the assertions that still hold. An assertion is for one request.
type nonces struct {
	until map[string]time.Time
	swept time.Time
}

// maxNonces bounds them: a node answers no more requests of gateways in the life of an assertion.
const maxNonces = 1 << 18

// use remembers a nonce; false: it has been used, or there are too many.
func (n *nonces) use(nonce string, until, now time.Time) bool {
	if n.until == nil {
		n.until = map[string]time.Time{}
	}
	if now.Sub(n.swept) > AssertionLife || now.Before(n.swept) {
		n.swept = now
		for other, over := range n.until {
			if over.Before(now) {
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
