// SPDX-License-Identifier: Apache-2.0

// Package wire has the parts of E2B's protocol that gateways of a fleet read as nodes do: host names, headers, keys, errors, marks of
// pages.
package wire

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Headers of requests: the API key, the tokens of a sandbox, its id and port. HeaderNext is in answers and says where a list continues.
const (
	HeaderKey     = "X-Api-Key"
	HeaderAccess  = "X-Access-Token"
	HeaderTraffic = "E2b-Traffic-Access-Token"
	HeaderSandbox = "E2b-Sandbox-Id"
	HeaderPort    = "E2b-Sandbox-Port"
	HeaderNext    = "X-Next-Token"
)

// LabelTemplate is the label of sessions that are sandboxes: the name of the template.
const LabelTemplate = "e2b.template"

// Headers between a gateway of a fleet and a node, see Server.ServeGateway of package e2b. The gateway removes those of clients.
const (
	// Reserved begins the names of all of them.
	Reserved = "Boxd-"
	// HeaderGateway carries what the gateway signed. A request with this header is one of E2B's protocol, not of boxd's API.
	HeaderGateway = access.HeaderGateway
	// HeaderDomain is the gateway's domain for host names of ports.
	HeaderDomain = "Boxd-E2b-Domain"
	// HeaderNew is the id for a new sandbox, which the gateway has claimed.
	HeaderNew = "Boxd-E2b-New"
	// HeaderAsk makes the request a question: the node checks the sandbox's token, does nothing, and answers with the next two headers.
	HeaderAsk   = "Boxd-E2b-Ask"
	HeaderHolds = "Boxd-E2b-Holds" // the name of the API key that the sandbox depends on
	HeaderOwner = "Boxd-E2b-Owner"
	// HeaderNone says that the node has no sandbox that the request could be for. Another node may have it.
	HeaderNone = "Boxd-E2b-None"
	// HeaderRefused marks an answer that refuses the gateway rather than its caller.
	HeaderRefused = "Boxd-Gateway-Refused"
)

// Ports of a sandbox that are none of its programs'.
const (
	PortEnvd = 49983 // processes and files
	PortCode = 49999 // code
)

// Paths of files. The last two are those of clients of Scalebox.
const (
	FilesPath    = "/files"
	UploadPath   = "/upload"
	DownloadPath = "/download/"
)

// AgentPackage is the package of Scalebox's RPCs, of which the services Process and Filesystem are E2B's.
const AgentPackage = "/sandboxagent."

// Destination is what a request is for: the control plane, or a port of a sandbox.
type Destination struct {
	Control bool
	Sandbox string // its id; "": the request does not name it, and a token or signature tells
	Port    int
	Host    bool // the host name says so
}

// id is what ids of sandboxes look like: they are part of a label of a host name.
var id = regexp.MustCompile(`^[a-z0-9]{1,40}$`)

// ValidID reports whether a text can be the id of a sandbox.
func ValidID(text string) bool { return id.MatchString(text) }

// NewID makes the id of a sandbox: one label of a host name, and nobody can guess it.
func NewID() string { return "i" + strings.ToLower(rand.Text()[:19]) }

// Route determines the destination of a request whose host name does not: by its headers, then by its path, since signed addresses have
// no headers.
func Route(r *http.Request) (Destination, error) {
	id, port := r.Header.Get(HeaderSandbox), r.Header.Get(HeaderPort)
	if id != "" || port != "" {
		return headerDestination(id, port)
	}
	switch path := AgentPath(r.URL.Path); {
	case isAgent(path), path == "/health" && r.Header.Get(HeaderAccess) != "",
		strings.HasPrefix(path, "/process.Process/"), strings.HasPrefix(path, "/filesystem.Filesystem/"), path == FilesPath, path == "/envs", path == "/metrics" && r.Header.Get(HeaderAccess) != "":
		return Destination{Port: PortEnvd}, nil
	case path == "/execute", path == "/contexts", strings.HasPrefix(path, "/contexts/"):
		return Destination{Port: PortCode}, nil
	}
	return Destination{Control: true}, nil
}

func headerDestination(id, port string) (Destination, error) {
	to := Destination{Sandbox: id, Port: PortEnvd}
	if !ValidID(id) {
		return to, fault.Field(HeaderSandbox, id, "the id of a sandbox: lower-case letters and digits")
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return to, fault.Field(HeaderPort, port, "a port, 1 to 65535")
		}
		to.Port = int(n)
	}
	return to, nil
}

// PortHost reads a host name PORT-ID.DOMAIN. It ignores the ports after host and domain.
func PortHost(host, domain string) (to Destination, ok bool) {
	label, ok := strings.CutSuffix(strings.ToLower(withoutPort(host)), "."+strings.ToLower(withoutPort(domain)))
	if !ok {
		return to, false
	}
	port, id, ok := strings.Cut(label, "-")
	n, err := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || n == 0 || !ValidID(id) {
		return to, false
	}
	return Destination{Sandbox: id, Port: int(n), Host: true}, true
}

func withoutPort(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// Domain is the domain for host names of ports: the configured one, or localhost with the port of a listener.
func Domain(configured, listen string) string {
	if configured != "" {
		return configured
	}
	if _, port, err := net.SplitHostPort(listen); err == nil {
		return net.JoinHostPort("localhost", port)
	}
	return "localhost"
}

// ValidDomain reports whether a text is a host name with or without a port.
func ValidDomain(text string) bool {
	for label := range strings.SplitSeq(withoutPort(text), ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
		}) {
			return false
		}
	}
	return !strings.Contains(text, "/")
}

// AgentPath turns the path of a request of Scalebox into that of E2B, where both have the same.
func AgentPath(path string) string {
	for _, service := range []string{"Process/", "Filesystem/"} {
		if method, ok := strings.CutPrefix(path, AgentPackage+service); ok {
			return "/" + map[string]string{"Process/": "process.Process/", "Filesystem/": "filesystem.Filesystem/"}[service] + method
		}
	}
	return path
}

// isAgent reports whether a path is one of Scalebox's sandboxes that E2B's do not have.
func isAgent(path string) bool {
	return strings.HasPrefix(path, AgentPackage) || path == UploadPath || strings.HasPrefix(path, DownloadPath)
}

// keyPrefix begins API keys in the form that older clients insist on: e2b_ and hexadecimal digits. The digits are those of
// a token of boxd.
const keyPrefix = "e2b_"

// HexPrefix begins such keys: it is how tokens of boxd begin.
var HexPrefix = keyPrefix + hex.EncodeToString([]byte(access.TokenPrefix))

// bearer is the token of boxd that an API key is.
func bearer(key string) string {
	if digits, ok := strings.CutPrefix(key, keyPrefix); ok {
		if text, err := hex.DecodeString(digits); err == nil && strings.HasPrefix(string(text), access.TokenPrefix) {
			return string(text)
		}
	}
	return key
}

// Key is the API key of a request, "" if it has none, or several.
func Key(r *http.Request) string {
	list := r.Header.Values(HeaderKey)
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

// Error is the body of every error but those of RPCs. Clients read the code from here, not from the status line.
type Error struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	SandboxID string `json:"sandboxId,omitempty"`
	Port      int    `json:"port,omitempty"`
}

// Error is its message.
func (e *Error) Error() string { return e.Message }

// GoneMessage is the sentence by which clients know that a sandbox is no more.
const GoneMessage = "The sandbox was not found"

// KeylessMessage says that the tokens of a sandbox lead nowhere.
const KeylessMessage = "the API key with which this sandbox was created or connected is no longer valid; connect to it with another key of its owner"

// UnprovenMessage refuses who has not proven a right to a sandbox.
const UnprovenMessage = "missing or wrong access token of the sandbox: it is in the answer to create and connect"

// Gone is the answer to what is meant for a sandbox that is not there.
func Gone(id string) *Error {
	return &Error{Code: http.StatusBadGateway, Message: GoneMessage, SandboxID: id}
}

// Missing is the answer of the control plane about a sandbox that is not there, or not the caller's.
func Missing(id string) *Error {
	return &Error{Code: http.StatusNotFound, Message: fmt.Sprintf("sandbox %s was not found", fault.Show(id))}
}

// UsualPage is how many sandboxes a page of a list has at most if its client does not say.
const UsualPage = 100

// Mark is where a page of a list ends: the sandbox that it ends with, which may be gone when the next is asked for.
func Mark(started time.Time, id string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", started.UnixNano(), id))
}

// ReadMark reads one.
func ReadMark(text string) (started int64, id string, ok bool) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	at, id, ok := strings.Cut(string(data), " ")
	started, bad := strconv.ParseInt(at, 10, 64)
	return started, id, ok && err == nil && bad == nil
}

// Compare is the order of lists: by when sandboxes have started, and then by their ids.
func Compare(started int64, id string, other int64, otherID string) int {
	return cmp.Or(cmp.Compare(started, other), strings.Compare(id, otherID))
}
