// SPDX-License-Identifier: Apache-2.0

// Settings of LangBot's protocol: the operator's in box.toml, and those that LangBot sends with its first action.

package actionrpc

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Settings is the table [langbot].
type Settings struct {
	Listen    string `toml:"listen"`     // a TCP address; "": the protocol is off
	Principal string `toml:"principal"`  // name in [principals] of the owner of all sessions
	Profile   string `toml:"profile"`    // of the sessions
	TokenFile string `toml:"token_file"` // of the control token; "": there is none
	Insecure  bool   `toml:"insecure"`   // no token is needed
	Instance  string `toml:"instance"`   // the only LangBot that is served; "": the first that connects
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

// instance matches an instance id.
var instance = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// validInstance reports whether a text is an instance id.
func validInstance(id string) bool { return instance.MatchString(id) }

// On reports whether the protocol is served; held says that the service manager has its socket.
func (c *Settings) On(held bool) bool { return held || c.Listen != "" }

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
	if c.Instance != "" && !validInstance(c.Instance) {
		errs = append(errs, fmt.Errorf("langbot.instance = %q: must be an id such as LangBot's, of letters, digits and . _ : -, or empty", c.Instance))
	}
	if c.MissingImage != profileImage && c.MissingImage != refuseImage {
		errs = append(errs, fmt.Errorf("langbot.missing_image = %q: must be %q or %q", c.MissingImage, profileImage, refuseImage))
	}
	return errors.Join(errs...)
}

// Closed refuses an address that anybody could connect to.
func (c *Settings) Closed(address string) error {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	loopback := err == nil && ip != nil && ip.IsLoopback()
	switch {
	case c.TokenFile != "":
		return nil
	case !loopback:
		return fmt.Errorf("langbot.token_file = \"\": may be empty only for a loopback address, and %s is not one", address)
	case !c.Insecure:
		return errors.New(`langbot.token_file = "": must be the path of a file with the control token; without one set insecure = true, which lets every user and program of this host use boxd as LangBot does`)
	}
	return nil
}

// leastToken is the minimum length of a control token; the reference demands the same.
const leastToken = 32

// mostToken is more than the length of any token.
const mostToken = 4096

// ReadToken reads the control token, "" if there is none. The file must be a secret of the user that runs boxd.
func (c *Settings) ReadToken() (string, error) {
	if c.TokenFile == "" {
		return "", nil
	}
	f, err := os.OpenFile(c.TokenFile, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("langbot.token_file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("langbot.token_file: %w", err)
	}
	if info.Mode()&(fs.ModeType|0o077) != 0 {
		return "", fmt.Errorf("langbot.token_file = %q: must have mode 0600, as it is a secret, and has %#o", c.TokenFile, info.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, mostToken+1))
	token := strings.TrimSpace(string(text))
	if err == nil && (len(token) < leastToken || len(text) > mostToken || strings.ContainsFunc(token, unicode.IsSpace)) {
		err = fmt.Errorf("%s: must be a token of %d characters or more, without spaces", c.TokenFile, leastToken)
	}
	if err != nil {
		return "", fmt.Errorf("langbot.token_file: %w", err)
	}
	return token, nil
}
