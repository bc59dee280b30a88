// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Settings is the table [e2b] of box.toml.
type Settings struct {
	Listen string `toml:"listen"` // an address of the loopback with a port; "": E2B's clients are not served
	// Fleet lets gateways of the fleet speak the protocol for their callers, over fleet.socket.
	Fleet   bool   `toml:"fleet"`
	Domain  string `toml:"domain"`  // sandboxes' ports are PORT-ID.DOMAIN; "": localhost with the port of Listen
	Profile string `toml:"profile"` // of sandboxes whose template names none
	// PythonKernel runs the Python code of sandboxes whose template does not say: one of the values below.
	PythonKernel string `toml:"python_kernel"`
	// PublicPorts lets everybody who knows the id of a sandbox reach its ports without a token, unless its template says otherwise
	// or its client has asked for none of that (network.allowPublicTraffic: false).
	PublicPorts bool `toml:"public_ports"`
	// TLSListen is an address with a port that is served by TLS, which clients of Scalebox demand; "": none is.
	TLSListen   string `toml:"tls_listen"`
	Certificate string `toml:"certificate"` // the file of its certificate, and of those that have signed it (PEM)
	Key         string `toml:"key"`         // the file of its private key (PEM), which only root may read
	// ObjectStorage are the drives that stand for buckets, by the addresses that clients of Scalebox name.
	ObjectStorage map[string]string `toml:"object_storage"`
	// Templates are what clients may name as the template of a sandbox. base and code-interpreter-v1 are always there.
	Templates map[string]Template `toml:"templates"`
}

// DefaultSettings is what holds where nothing is said.
func DefaultSettings() Settings { return Settings{Profile: "e2b", PythonKernel: pythonAuto} }

// Values of PythonKernel.
const (
	pythonAuto      = "auto"      // ipykernel, if python3 of the sandbox can import it
	pythonIPykernel = "ipykernel" // code fails without it
	pythonOwn       = "own"       // boxd's
)

func checkPythonKernel(key, value string) error {
	if known := []string{pythonAuto, pythonIPykernel, pythonOwn}; !slices.Contains(known, value) {
		return fault.Field(key, value, fault.OneOf(known...))
	}
	return nil
}

// pythonKernel is the kernel of Python in sandboxes of a template, which may be gone.
func (c *Settings) pythonKernel(template string) string {
	if _, t, ok := c.template(template); ok && t.PythonKernel != "" {
		return t.PythonKernel
	}
	return cmp.Or(c.PythonKernel, pythonAuto)
}

// publicPorts says whether ports of sandboxes of a template need no token. One that is gone opens nothing.
func (c *Settings) publicPorts(template string) bool {
	_, t, ok := c.template(template)
	if ok && t.PublicPorts != nil {
		return *t.PublicPorts
	}
	return ok && c.PublicPorts
}

// Public says for people which ports need no token, "" if all do.
func (c *Settings) Public() string {
	var open, closed []string
	for _, name := range sortedNames(c.Templates) {
		switch p := c.Templates[name].PublicPorts; {
		case p != nil && *p && !c.PublicPorts:
			open = append(open, name)
		case p != nil && !*p && c.PublicPorts:
			closed = append(closed, name)
		}
	}
	switch {
	case len(open) > 0:
		return "ports of sandboxes of the templates " + strings.Join(open, ", ")
	case c.PublicPorts && len(closed) > 0:
		return "ports of all sandboxes but those of the templates " + strings.Join(closed, ", ")
	case c.PublicPorts:
		return "ports of all sandboxes"
	}
	return ""
}

// Template is what a sandbox is made of that a client asks for by name.
type Template struct {
	Profile string   `toml:"profile"` // "": that of the table
	Image   string   `toml:"image"`   // "": that of the profile
	Aliases []string `toml:"aliases"` // other names of the template
	// PythonKernel runs its Python code; "": that of the table.
	PythonKernel string `toml:"python_kernel"`
	PublicPorts  *bool  `toml:"public_ports"` // left out: as the table says
	// Cwd is where programs and code start whose client does not say where, and where relative paths begin; "": the home directory.
	Cwd string `toml:"cwd"`
	// Languages are those of code, the first of code whose client names none; empty: all that boxd runs, Python first.
	Languages []string `toml:"languages"`
}

// validate names each of these keys that is wrong; key is that of the template.
func (t *Template) validate(key string) error {
	var errs []error
	if t.PythonKernel != "" {
		errs = append(errs, checkPythonKernel(key+".python_kernel", t.PythonKernel))
	}
	if t.Cwd != "" && (!path.IsAbs(t.Cwd) || path.Clean(t.Cwd) != t.Cwd || strings.Contains(t.Cwd, "\x00")) {
		errs = append(errs, fault.Field(key+".cwd", t.Cwd, "the absolute path of a directory of the sandbox, without . and .., or empty"))
	}
	for _, language := range t.Languages {
		if !slices.Contains(languages(), language) {
			errs = append(errs, fault.Field(key+".languages", language, fault.OneOf(languages()...)))
		}
	}
	return errors.Join(errs...)
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

// On reports whether the dialect is served; activated says that the service manager has its socket.
func (c *Settings) On(activated bool) bool { return activated || c.Listen != "" || c.Fleet }

// Validate names each key that is wrong, and what it must be. has tells whether there is a profile of a name.
func (c *Settings) Validate(has func(profile string) bool) error {
	var errs []error
	if c.Listen != "" {
		if err := Loopback("e2b.listen", c.Listen); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Domain != "" && !wire.ValidDomain(c.Domain) {
		errs = append(errs, fault.Field("e2b.domain", c.Domain, "a host name, with a port if it is not 80 or 443, such as localhost:5420"))
	}
	if err := c.validateTLS(); err != nil {
		errs = append(errs, err)
	}
	check := func(key, profile string) {
		if profile != "" && !has(profile) {
			errs = append(errs, fault.Field(key, profile, "the name of a table [profiles.NAME]"))
		}
	}
	check("e2b.profile", c.Profile)
	if err := checkPythonKernel("e2b.python_kernel", c.PythonKernel); err != nil {
		errs = append(errs, err)
	}
	for _, uri := range slices.Sorted(maps.Keys(c.ObjectStorage)) {
		if _, _, err := policy.DriveRef("e2b.object_storage."+strconv.Quote(uri), c.ObjectStorage[uri]); err != nil {
			errs = append(errs, err)
		}
	}
	names := map[string]string{}
	for _, name := range sortedNames(c.Templates) {
		t := c.Templates[name]
		key := "e2b.templates." + name
		check(key+".profile", t.Profile)
		if err := t.validate(key); err != nil {
			errs = append(errs, err)
		}
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

func (c *Settings) validateTLS() error {
	switch at, err := netip.ParseAddrPort(c.TLSListen); {
	case c.TLSListen == "" && (c.Certificate != "" || c.Key != ""):
		return fault.Field("e2b.tls_listen", "", "an address with a port, such as 127.0.0.2:5443, as there is a certificate")
	case c.TLSListen == "":
		return nil
	case err != nil || at.Port() == 0:
		return fault.Field("e2b.tls_listen", c.TLSListen, "an address with a port, such as 127.0.0.2:5443, or empty")
	case at.Addr().Unmap() == netip.AddrFrom4([4]byte{127, 0, 0, 1}): // clients of Scalebox would not use TLS there
		return fault.Field("e2b.tls_listen", c.TLSListen, "an address other than 127.0.0.1, to which clients of Scalebox do not speak TLS; such as 127.0.0.2:5443")
	}
	for _, file := range []struct{ key, path string }{{"e2b.certificate", c.Certificate}, {"e2b.key", c.Key}} {
		if !strings.HasPrefix(file.path, "/") {
			return fault.Field(file.key, file.path, "the absolute path of a PEM file").WithHint("boxctl e2b certificate makes both")
		}
	}
	return nil
}

// ByTLS reports whether a listener is the one that is served by TLS.
func (c *Settings) ByTLS(ln net.Listener) bool { return relay.ListensAt(ln, c.TLSListen) }

// TLS reads the certificate and its key, and again when they have changed; nil: nothing is served by TLS. The key must be a secret
// of who runs boxd.
func (c *Settings) TLS(log *slog.Logger) (*tls.Config, error) {
	if c.TLSListen == "" {
		return nil, nil //nolint:nilnil // as said
	}
	config, err := access.TLSFiles{Certificate: c.Certificate, PrivateKey: c.Key, KeyName: "key"}.Config(log)
	if err != nil {
		return nil, fmt.Errorf("e2b.%w", err)
	}
	return config, nil
}

// drive is the drive that stands for the address of a bucket: the longest address that it begins with.
func (c *Settings) drive(uri string) (name string, ok bool) {
	best := ""
	for prefix, drive := range c.ObjectStorage {
		if (uri == prefix || strings.HasPrefix(uri, strings.TrimSuffix(prefix, "/")+"/")) && (len(prefix) > len(best) || !ok) {
			best, name, ok = prefix, drive, true
		}
	}
	return name, ok
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

// template finds a template by its name or another of its names; base, if none is given.
func (c *Settings) template(name string) (string, *Template, bool) {
	name = cmp.Or(name, templateBase)
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
	maps.Copy(all, c.Templates)
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
