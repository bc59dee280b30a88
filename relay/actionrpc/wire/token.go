// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"unicode"

	"github.com/boxd-dev/boxd/internal/durable"
)

// Closed refuses to serve without a token at an address that anybody could connect to, and at any unless insecure says so.
func Closed(address, tokenFile string, insecure bool) error {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	loopback := err == nil && ip != nil && ip.IsLoopback()
	switch {
	case tokenFile != "":
		return nil
	case !loopback:
		return fmt.Errorf("langbot.token_file = \"\": may be empty only for a loopback address, and %s is not one", address)
	case !insecure:
		return errors.New(`langbot.token_file = "": must be the path of a file with the control token; without one set insecure = true, which lets every user and program of this host use boxd as LangBot does`)
	}
	return nil
}

// minToken is the minimum length of a control token; the reference demands the same.
const minToken = 32

// maxToken is more than the length of any token.
const maxToken = 4096

// ReadToken reads the control token, "" if there is no file. The file must be a secret of the user that runs the server.
func ReadToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	f, err := durable.Open(file)
	if err != nil {
		return "", fmt.Errorf("langbot.token_file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("langbot.token_file: %w", err)
	}
	if info.Mode()&(fs.ModeType|0o077) != 0 {
		return "", fmt.Errorf("langbot.token_file = %q: must have mode 0600, as it is a secret, and has %#o", file, info.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	token := strings.TrimSpace(string(text))
	if err == nil && (len(token) < minToken || len(text) > maxToken || strings.ContainsFunc(token, unicode.IsSpace)) {
		err = fmt.Errorf("%s: must be a token of %d characters or more, without spaces", file, minToken)
	}
	if err != nil {
		return "", fmt.Errorf("langbot.token_file: %w", err)
	}
	return token, nil
}
