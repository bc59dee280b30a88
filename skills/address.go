// SPDX-License-Identifier: Apache-2.0

// People give the address of a web page: a repository, a directory in it, a SKILL.md or a release at GitHub, GitLab or Gitea, or
// an archive itself. This finds out which archive they mean, without any connection.

package skills

import (
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Kinds of hosts, by the form of their addresses.
const (
	gitHub = "github"
	gitLab = "gitlab"
	Gitea  = "gitea"
)

// SourceHost is a host that archives may come from.
type SourceHost struct {
	Name  string // with a port if it is not the usual one
	Plain bool   // over HTTP, without TLS
	Kind  string // "": plain archives only
}

// ParseHost parses an entry of skills.hosts: a name, with http:// before it if there is no TLS, and =github, =gitlab or =gitea
// after it if it is one of these and not known by name.
func ParseHost(text string) (SourceHost, error) {
	rest, plain := strings.CutPrefix(text, "http://")
	name, kind, given := strings.Cut(rest, "=")
	h := SourceHost{Name: strings.ToLower(name), Plain: plain, Kind: kind}
	if !given {
		h.Kind = map[string]string{"github.com": gitHub, "gitlab.com": gitLab, "codeberg.org": Gitea, "gitea.com": Gitea}[h.Name]
	}
	u, err := url.Parse("https://" + h.Name + "/")
	port := ""
	if err == nil {
		port = u.Port()
	}
	_, badPort := strconv.ParseUint("0"+port, 10, 16)
	if err != nil || u.Host != h.Name || u.Hostname() == "" || u.User != nil || badPort != nil || strings.ContainsAny(h.Name, "/?#@*% ") ||
		given && !slices.Contains([]string{gitHub, gitLab, Gitea}, kind) {
		return h, fmt.Errorf("skills.hosts has %q: must be host names such as \"github.com\", \"git.example.org=gitlab\" or \"http://127.0.0.1:3000=gitea\"", text)
	}
	return h, nil
}

// Hosts are the hosts that archives may come from.
type Hosts []SourceHost

// Allows finds the host of a URL. GitHub's hosts for archives are included with it.
func (h Hosts) Allows(u *url.URL) (SourceHost, bool) {
	name := strings.ToLower(u.Host)
	if u.Scheme == "https" && slices.Contains([]string{"codeload.github.com", "objects.githubusercontent.com", "release-assets.githubusercontent.com"}, name) {
		name = "github.com"
	}
	i := slices.IndexFunc(h, func(x SourceHost) bool {
		return x.Name == name && (u.Scheme == "https" && !x.Plain || u.Scheme == "http" && x.Plain)
	})
	if i < 0 {
		return SourceHost{}, false
	}
	return h[i], true
}

// Archive is where to get what the caller asked for.
type Archive struct {
	URL   *url.URL
	Below string // directory of it to use; "": all of it
	// Repository says that its only directory is named after a repository and version, not after a skill.
	Repository bool
}

// FindArchive determines the archive of an address. Hosts that are not listed are refused.
func FindArchive(hosts Hosts, text string) (*Archive, error) {
	u, err := url.Parse(text)
	if err != nil || len(text) > 2048 || u.Host == "" || u.User != nil || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fault.Field("url", text, "https://HOST/PATH, without a password")
	}
	host, ok := hosts.Allows(u)
	if !ok {
		return nil, refused(hosts, u)
	}
	u.Fragment, u.RawFragment = "", ""
	if u.RawQuery != "" || strings.Contains(u.EscapedPath(), "%2F") || strings.Contains(u.EscapedPath(), "%2f") {
		return nil, fault.Field("url", text, "an address without a query and without %2F")
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	if slices.ContainsFunc(parts, func(p string) bool {
		return p == "." || p == ".." || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f })
	}) {
		return nil, fault.Field("url", text, "an address without . and ..")
	}
	var a *Archive
	switch {
	case isArchive(u.Path):
		return &Archive{URL: u, Repository: strings.Contains(u.Path, "/archive/")}, nil
	case host.Kind == gitHub:
		a = github(parts)
	case host.Kind == gitLab:
		a = gitlab(parts)
	case host.Kind == Gitea:
		a = gitea(parts)
	}
	if a == nil {
		return nil, fault.Field("url", text, "an archive (.zip, .tar, .tar.gz, .tgz), or at GitHub, GitLab or Gitea a repository, a directory or SKILL.md in it, or a named release")
	}
	a.URL.Scheme, a.URL.Host, a.Repository = u.Scheme, u.Host, true
	return a, nil
}

func refused(hosts Hosts, u *url.URL) error {
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.Name
	}
	list := strings.Join(names, ", ")
	allowed := list
	if list == "" {
		allowed = "in skills.hosts (empty)"
	}
	return fault.Field("url", u.Scheme+"://"+u.Host, allowed).Of(fault.Denied).
		WithHint("the operator can add the host to skills.hosts in box.toml; or download the archive and install the file").
		By(fault.Denial{Layer: fault.LayerPolicy, Rule: "skills.hosts", Allowed: list, Setting: "skills.hosts in box.toml"})
}

func isArchive(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{".zip", ".tar", ".tar.gz", ".tgz"}, func(end string) bool { return strings.HasSuffix(name, end) })
}

// of returns the archive of a version of a repository, and where in it to look. A branch whose name has a slash cannot be told
// from a directory: its first part is taken for the branch.
func of(where string, in []string) *Archive {
	below := strings.Join(in, "/")
	if n := len(in); n > 0 && strings.EqualFold(in[n-1], "SKILL.md") {
		below = path.Dir(below)
	}
	if below == "." {
		below = ""
	}
	return &Archive{URL: &url.URL{Path: where}, Below: below}
}

func repository(parts []string) string {
	return "/" + path.Join(parts[0], strings.TrimSuffix(parts[1], ".git"))
}

// github: /OWNER/REPO, …/tree/REF/DIR, …/blob/REF/FILE, …/releases/tag/TAG.
func github(p []string) *Archive {
	if len(p) < 2 || p[0] == "" {
		return nil
	}
	repo := repository(p)
	switch {
	case len(p) == 2:
		return of(repo+"/archive/HEAD.tar.gz", nil)
	case len(p) >= 4 && (p[2] == "tree" || p[2] == "blob"):
		return of(repo+"/archive/"+p[3]+".tar.gz", p[4:])
	case len(p) == 5 && p[2] == "releases" && p[3] == "tag":
		return of(repo+"/archive/refs/tags/"+p[4]+".tar.gz", nil)
	}
	return nil
}

// gitlab: /GROUP/…/REPO, and behind /-/ tree/REF/DIR, blob/REF/FILE, releases/TAG, tags/TAG.
func gitlab(p []string) *Archive {
	at := slices.Index(p, "-")
	var what []string
	if at >= 0 {
		p, what = p[:at], p[at+1:]
	}
	if len(p) < 2 || p[0] == "" {
		return nil
	}
	name := strings.TrimSuffix(p[len(p)-1], ".git")
	repo := "/" + path.Join(append(slices.Clone(p[:len(p)-1]), name)...)
	version := func(ref string, in []string) *Archive {
		return of(repo+"/-/archive/"+ref+"/"+name+"-"+ref+".tar.gz", in)
	}
	switch {
	case at < 0:
		return version("HEAD", nil)
	case len(what) >= 2 && (what[0] == "tree" || what[0] == "blob"):
		return version(what[1], what[2:])
	case len(what) == 2 && (what[0] == "releases" || what[0] == "tags"):
		return version(what[1], nil)
	}
	return nil
}

// gitea: /OWNER/REPO, …/src/branch|tag|commit/REF/PATH, …/releases/tag/TAG.
func gitea(p []string) *Archive {
	if len(p) < 2 || p[0] == "" {
		return nil
	}
	repo := repository(p)
	switch {
	case len(p) == 2:
		return of(repo+"/archive/HEAD.tar.gz", nil)
	case len(p) >= 5 && p[2] == "src" && slices.Contains([]string{"branch", "tag", "commit"}, p[3]):
		return of(repo+"/archive/"+p[4]+".tar.gz", p[5:])
	case len(p) == 5 && p[2] == "releases" && p[3] == "tag":
		return of(repo+"/archive/"+p[4]+".tar.gz", nil)
	}
	return nil
}

// Within reports whether this address may be connected to for a host. A name must not resolve to this host or its link, such as a
// cloud's metadata service; that is allowed only for an address written as such.
func (h SourceHost) Within(ip net.IP) bool {
	u := url.URL{Host: h.Name}
	if name := u.Hostname(); net.ParseIP(name) != nil || name == "localhost" {
		return true
	}
	return !ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsLinkLocalUnicast() && !ip.IsMulticast() && !ip.IsInterfaceLocalMulticast()
}
