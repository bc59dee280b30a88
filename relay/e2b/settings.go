// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Settings is the table [e2b] of box.toml.
type Settings struct {
	Listen  string `toml:"listen"`  // an address of the loopback with a port; "": E2B's clients are not served
	Domain  string `toml:"domain"`  // sandboxes' ports are PORT-ID.DOMAIN; "": localhost with the port of Listen
	Profile string `toml:"profile"` // of sandboxes whose template names none; "": the default profile
	// Templates are what clients may name as the template of a sandbox. base and code-interpreter-v1 are always there.
	Templates map[string]Template `toml:"templates"`
}

// Template is what a sandbox is made of that a client asks for by name.
type Template struct {
	Profile string   `toml:"profile"` // "": that of the table
	Image   string   `toml:"image"`   // "": that of the profile
	Aliases []string `toml:"aliases"` // other names of the template
}

// The templates that clients name by themselves.
const (
	templateBase = "base"
	templateCode = "code-interpreter-v1"
)

// builtin are the templates that are there without being configured.
func builtin() map[string]Template {
	return map[string]Template{templateBase: {}, templateCode: {Aliases: []string{"code-interpreter"}}}
}

// maxName is how long names of templates are, in bytes.
const maxName = 128

// On reports whether the dialect is served; held says that the service manager has its socket.
func (c *Settings) On(held bool) bool { return held || c.Listen != "" }

// Validate names each key that is wrong, and what it must be. has tells whether there is a profile of a name.
func (c *Settings) Validate(has func(profile string) bool) error {
	var errs []error
	if c.Listen != "" {
		if err := Loopback("e2b.listen", c.Listen); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Domain != "" && !validDomain(c.Domain) {
		errs = append(errs, fault.Field("e2b.domain", c.Domain, "a host name, with a port if it is not 80 or 443, such as localhost:5420"))
	}
	check := func(key, profile string) {
		if profile != "" && !has(profile) {
			errs = append(errs, fault.Field(key, profile, "the name of a table [profiles.NAME]"))
		}
	}
	check("e2b.profile", c.Profile)
	names := map[string]string{}
	for _, name := range sortedNames(c.Templates) {
		t := c.Templates[name]
		key := "e2b.templates." + name
		check(key+".profile", t.Profile)
		for _, n := range append([]string{name}, t.Aliases...) {
			other, taken := names[n]
			switch {
			case n == "" || len(n) > maxName || strings.ContainsFunc(n, func(r rune) bool { return r <= ' ' || r > '~' }):
				errs = append(errs, fault.Field(key, n, fmt.Sprintf("a name of 1 to %d printable characters without spaces", maxName)))
			case taken:
				errs = append(errs, fault.Field(key, n, "a name that no other template has").WithText("%s = %s: is a name of e2b.templates.%s too", key, fault.Show(n), other))
			}
			names[n] = name
		}
	}
	return errors.Join(errs...)
}

// Loopback refuses an address that other hosts can reach: keys are sent in the clear.
func Loopback(key, address string) error {
	host, port, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	if err != nil || port == "" || ip == nil || !ip.IsLoopback() {
		return fault.Field(key, address, "a loopback address with a port, such as 127.0.0.1:5420, since keys are sent in the clear")
	}
	return nil
}

// validDomain reports whether a text is a host name with or without a port.
func validDomain(text string) bool {
	host, _, err := net.SplitHostPort(text)
	if err != nil {
		host = text
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
		}) {
			return false
		}
	}
	return !strings.Contains(text, "/")
}

// template finds a template by its name or another of its names.
func (c *Settings) template(name string) (string, *Template, bool) {
	for _, all := range []map[string]Template{c.Templates, builtin()} {
		if t, ok := all[name]; ok {
			return name, &t, true
		}
		for _, n := range sortedNames(all) {
			if t := all[n]; slices.Contains(t.Aliases, name) {
				return n, &t, true
			}
		}
	}
	return "", nil, false
}

// names lists the templates there are.
func (c *Settings) names() []string {
	all := builtin()
	for name, t := range c.Templates {
		all[name] = t
	}
	return sortedNames(all)
}

func sortedNames(all map[string]Template) []string {
	list := make([]string, 0, len(all))
	for name := range all {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// request is what a sandbox of the template asks of boxd.
func (c *Settings) request(t *Template) *policy.Request {
	req := &policy.Request{Profile: c.Profile}
	if t.Profile != "" {
		req.Profile = t.Profile
	}
	if t.Image != "" {
		req.Image = &t.Image
	}
	return req
}
