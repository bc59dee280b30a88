// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Purposes of the tokens of a sandbox.
const (
	purposeAccess  = "access"  // its processes, files and code
	purposeTraffic = "traffic" // its ports, and the list of its code contexts
)

// token proves a right to a sandbox. It is computed and kept nowhere, so it is in no record and no log, and the same for every
// boxd of this host.
func (s *Server) token(purpose string, sess *session.Session) string {
	return s.cfg.Tokens.SandboxToken(purpose, sess.Owner.Name, sess.ID, sess.Created.UnixNano())
}

// same compares two secrets.
func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// Parameters of signed addresses.
const (
	parameterSignature = "signature"
	parameterExpires   = "signature_expiration"
	parameterPath      = "path"
	parameterUser      = "username"
)

// signed is what an address of a file says that carries a signature instead of a token.
type signed struct {
	path, operation, user, expires string
	signature                      string

	prefix hash.Cloner // what is hashed before a token
}

// maxSigned is how long an address with a signature may be, in bytes: where it names no sandbox it is held against each.
const maxSigned = 16 << 10

// maxExpires is how many digits seconds have at most.
const maxExpires = 20

// Operations that are signed.
const (
	operationRead  = "read"
	operationWrite = "write"
)

// signedAddress reads the signature of a request for a file; nil: it has none.
func signedAddress(r *http.Request) *signed {
	query := r.URL.Query()
	download, isDownload := strings.CutPrefix(r.URL.Path, wire.DownloadPath)
	if !query.Has(parameterSignature) || r.URL.Path != wire.FilesPath && r.URL.Path != wire.UploadPath && !isDownload {
		return nil
	}
	if len(r.URL.RawQuery)+len(download) > maxSigned {
		return nil
	}
	a := &signed{path: query.Get(parameterPath), user: query.Get(parameterUser), expires: query.Get(parameterExpires), signature: query.Get(parameterSignature), operation: operationRead}
	if r.Method == http.MethodPost {
		a.operation = operationWrite
	}
	if isDownload {
		a.path = "/" + download
	}
	prefix := sha256.New()
	_, _ = io.WriteString(prefix, a.path+":"+a.operation+":"+a.user+":") // cannot fail
	var ok bool
	if a.prefix, ok = prefix.(hash.Cloner); !ok || len(a.expires) > maxExpires {
		return nil
	}
	return a
}

// fits reports whether the signature was made with an access token.
func (a *signed) fits(token string) bool {
	sum, err := a.prefix.Clone()
	if err != nil {
		return false
	}
	if a.expires != "" {
		token += ":" + a.expires
	}
	_, _ = io.WriteString(sum, token) // cannot fail
	return same(a.signature, "v1_"+base64.RawStdEncoding.EncodeToString(sum.Sum(nil)))
}

// expired reports whether the signature does not hold any more.
func (a *signed) expired(now time.Time) bool {
	if a.expires == "" {
		return false
	}
	at, err := strconv.ParseInt(a.expires, 10, 64)
	return err != nil || now.Unix() >= at
}
