// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Headers by which requests say what they are about, and prove that they may.
const (
	headerKey     = "X-Api-Key"
	headerAccess  = "X-Access-Token"
	headerTraffic = "E2b-Traffic-Access-Token"
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
)

// keyPrefix begins API keys in the form that older clients insist on: e2b_ and hexadecimal digits. The digits are those of
// a token of boxd.
const keyPrefix = "e2b_"

// hexPrefix begins such keys: it is how tokens of boxd begin.
var hexPrefix = keyPrefix + hex.EncodeToString([]byte(access.TokenPrefix))

// bearer is the token of boxd that an API key is.
func bearer(key string) string {
	if digits, ok := strings.CutPrefix(key, keyPrefix); ok {
		if text, err := hex.DecodeString(digits); err == nil && strings.HasPrefix(string(text), access.TokenPrefix) {
			return string(text)
		}
	}
	return key
}

// key is the API key of a request, "" if it has none, or several.
func key(r *http.Request) string {
	list := r.Header.Values(headerKey)
	if len(list) == 1 {
		return bearer(strings.TrimSpace(list[0]))
	}
	authorization := r.Header.Values("Authorization")
	if len(list) > 1 || len(authorization) != 1 {
		return ""
	}
	if scheme, text, ok := strings.Cut(authorization[0], " "); ok && strings.EqualFold(scheme, "bearer") {
		return bearer(strings.TrimSpace(text))
	}
	return ""
}

// Purposes of the tokens of a sandbox.
const (
	purposeAccess  = "access"  // its processes, files and code
	purposeTraffic = "traffic" // its ports, and the list of its code contexts
)

// token proves a right to a sandbox. It is computed and kept nowhere, so it is in no record and no log, and the same for every
// boxd of this host.
func (s *Server) token(purpose string, of *session.Session) string {
	return s.cfg.Tokens.SandboxToken(purpose, of.Owner.Name, of.ID, of.Created.UnixNano())
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

	begun hash.Cloner // what is hashed before a token
}

// Paths of files. The last two are those of clients of Scalebox.
const (
	filesPath    = "/files"
	uploadPath   = "/upload"
	downloadPath = "/download/"
)

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
	download, isDownload := strings.CutPrefix(r.URL.Path, downloadPath)
	if !query.Has(parameterSignature) || r.URL.Path != filesPath && r.URL.Path != uploadPath && !isDownload {
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
	begun := sha256.New()
	_, _ = io.WriteString(begun, a.path+":"+a.operation+":"+a.user+":") // cannot fail
	var ok bool
	if a.begun, ok = begun.(hash.Cloner); !ok || len(a.expires) > maxExpires {
		return nil
	}
	return a
}

// fits reports whether the signature was made with an access token.
func (a *signed) fits(token string) bool {
	sum, err := a.begun.Clone()
	if err != nil {
		return false
	}
	if a.expires != "" {
		token += ":" + a.expires
	}
	_, _ = io.WriteString(sum, token) // cannot fail
	return same(a.signature, "v1_"+base64.RawStdEncoding.EncodeToString(sum.Sum(nil)))
}

// over reports whether the signature does not hold any more.
func (a *signed) over(now time.Time) bool {
	if a.expires == "" {
		return false
	}
	at, err := strconv.ParseInt(a.expires, 10, 64)
	return err != nil || now.Unix() >= at
}
