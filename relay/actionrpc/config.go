// SPDX-License-Identifier: Apache-2.0

// Settings of LangBot's protocol: the operator's in box.toml, and those that LangBot sends with its first action.

package actionrpc

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// Settings is the table [langbot].
type Settings struct {
	Listen    string `toml:"listen"`     // a TCP address; "": the protocol is off
	Principal string `toml:"principal"`  // name in [principals] of the owner of all sessions
	Profile   string `toml:"profile"`    // of the sessions
	TokenFile string `toml:"token_file"` // of the control token; "": there is none
	Insecure  bool   `toml:"insecure"`   // no token is needed
	Instance  string `toml:"instance"`   // the only LangBot that is served; "": the first that connects
	Fleet     bool   `toml:"fleet"`      // gateways of the fleet pass LangBot on to this host
	// MissingImage is what a session gets whose image is not on this host: "profile", the profile's image, or "refuse".
	MissingImage string `toml:"missing_image"`
	// AllowSoftStorage reports LangBot's own admission as ready even if the kernel does not limit the storage of Workspaces.
	AllowSoftStorage bool `toml:"allow_soft_storage_limits"`
}

// Values of Settings.MissingImage.
const (
	profileImage = "profile"
	refuseImage  = "refuse"
)

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{Principal: "langbot", Profile: "network_extended", MissingImage: profileImage}
}

// On reports whether the protocol is served; activated says that the service manager has its socket.
func (c *Settings) On(activated bool) bool { return activated || c.Listen != "" || c.Fleet }

// Validate names the wrong key and what is allowed.
func (c *Settings) Validate() error {
	var errs []error
	if c.Listen != "" {
		host, port, err := net.SplitHostPort(c.Listen)
		if err != nil || port == "" || net.ParseIP(host) == nil {
			errs = append(errs, fmt.Errorf("langbot.listen = %q: must be an address of this host with a port, such as 127.0.0.1:5410, or empty", c.Listen))
		} else if err := c.Closed(c.Listen); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Principal == "" {
		errs = append(errs, errors.New(`langbot.principal = "": must be the name of a table [principals.NAME]`))
	}
	if c.Profile == "" {
		errs = append(errs, errors.New(`langbot.profile = "": must be the name of a profile`))
	}
	if c.TokenFile != "" && !strings.HasPrefix(c.TokenFile, "/") {
		errs = append(errs, fmt.Errorf("langbot.token_file = %q: must be an absolute path, or empty", c.TokenFile))
	}
	if c.Instance != "" && !wire.ValidInstance(c.Instance) {
		errs = append(errs, fmt.Errorf("langbot.instance = %q: must be an id such as LangBot's, of letters, digits and . _ : -, or empty", c.Instance))
	}
	if c.MissingImage != profileImage && c.MissingImage != refuseImage {
		errs = append(errs, fmt.Errorf("langbot.missing_image = %q: must be %q or %q", c.MissingImage, profileImage, refuseImage))
	}
	return errors.Join(errs...)
}

// Closed refuses an address that anybody could connect to.
func (c *Settings) Closed(address string) error {
	return wire.Closed(address, c.TokenFile, c.Insecure) //nolint:wrapcheck // it names the key
}

// ReadToken reads the control token, "" if there is none.
func (c *Settings) ReadToken() (string, error) {
	return wire.ReadToken(c.TokenFile) //nolint:wrapcheck // it names the key
}
