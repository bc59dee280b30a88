// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// NATSIssuer is a NATS operator with an account for a fleet, which issues credentials to users.
type NATSIssuer struct {
	Config string // of the server

	t       testing.TB
	account nkeys.KeyPair
}

// NewNATSIssuer makes an operator.
func NewNATSIssuer(t testing.TB) *NATSIssuer {
	t.Helper()
	operator, fleet, system := pair(t, nkeys.PrefixByteOperator), pair(t, nkeys.PrefixByteAccount), pair(t, nkeys.PrefixByteAccount)
	o := jwt.NewOperatorClaims(public(t, operator))
	o.SystemAccount = public(t, system)
	a := jwt.NewAccountClaims(public(t, fleet))
	a.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	sign := func(c jwt.Claims) string {
		text, err := c.Encode(operator)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	config := fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n%s: %s\n%s: %s\n}\n",
		sign(o), o.SystemAccount, a.Subject, sign(a), o.SystemAccount, sign(jwt.NewAccountClaims(o.SystemAccount)))
	return &NATSIssuer{config, t, fleet}
}

func pair(t testing.TB, kind nkeys.PrefixByte) nkeys.KeyPair {
	t.Helper()
	k, err := nkeys.CreatePair(kind)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func public(t testing.TB, k nkeys.KeyPair) string {
	t.Helper()
	text, err := k.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Credentials returns the text of a user's credentials file, valid for a time. The user may publish and subscribe to these subjects;
// nil: to all.
func (i *NATSIssuer) Credentials(life time.Duration, publish, subscribe []string) string {
	i.t.Helper()
	user := pair(i.t, nkeys.PrefixByteUser)
	c := jwt.NewUserClaims(public(i.t, user))
	c.Expires = time.Now().Add(life).Unix()
	c.Pub.Allow, c.Sub.Allow = publish, subscribe
	text, err := c.Encode(i.account)
	if err != nil {
		i.t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		i.t.Fatal(err)
	}
	file, err := jwt.FormatUserConfig(text, seed)
	if err != nil {
		i.t.Fatal(err)
	}
	return string(file)
}
