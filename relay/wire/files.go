// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/files"
)

// Name is a name of a file as JSON carries it: as text, and where it is none as bytes in base64 besides.
func Name(name []byte) (text, encoded string) {
	if utf8.Valid(name) {
		return string(name), ""
	}
	return strings.ToValidUTF8(string(name), "�"), base64.StdEncoding.EncodeToString(name)
}

func fileFailure(f *files.Failure) *api.FileFailure {
	out := &api.FileFailure{Kind: string(f.Kind)}
	out.Path, out.PathBase64 = Name(f.Path)
	return out
}
