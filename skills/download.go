// SPDX-License-Identifier: Apache-2.0

// Archives are fetched only from hosts that the operator has named: neither a redirect nor a DNS answer can lead elsewhere.

package skills

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Bounds of a download.
const (
	timeout      = 2 * time.Minute
	maxRedirects = 5
)

// Fetch passes an archive to take while it arrives.
func Fetch(ctx context.Context, hosts Hosts, a *Archive, take func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c := &http.Client{
		Transport: &http.Transport{
			Proxy: nil, DisableKeepAlives: true, ResponseHeaderTimeout: timeout, TLSHandshakeTimeout: timeout,
			DialContext: dial(hosts),
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error { return follow(hosts, req.URL, len(via)) },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL.String(), nil)
	if err != nil {
		return fault.Field("url", a.URL.String(), "an address")
	}
	req.Header.Set("User-Agent", "boxd")
	resp, err := c.Do(req)
	if err != nil {
		return failed(a.URL, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		f := fault.Errorf(fault.NotFound, "%s answered %s", a.URL.Host, resp.Status).WithHint("a private repository cannot be fetched: download it and install the archive")
		f.Field, f.Value = "url", a.URL.String()
		return f
	}
	return take(&body{resp.Body, a.URL})
}

// body distinguishes errors of the network from errors of the archive.
type body struct {
	io.Reader
	from *url.URL
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = failed(b.from, err)
	}
	return n, err
}

func failed(u *url.URL, err error) error {
	if fault.KindOf(err) != fault.Internal {
		return err // it already says what is wrong
	}
	f := fault.Errorf(fault.Unavailable, "fetch from %s: %w", u.Host, err).WithHint("allow boxd.service to use the network with a drop-in: see boxd-skills(7)")
	f.Field, f.Value = "url", u.String()
	return f
}

func follow(hosts Hosts, to *url.URL, times int) error {
	if times > maxRedirects {
		return fault.Errorf(fault.Unavailable, "more than %d redirects", maxRedirects).WithHint("use the address they redirect to")
	}
	if _, ok := hosts.Allows(to); !ok || to.User != nil {
		return fault.Field("url", to.Scheme+"://"+to.Host, "a redirect to a host of skills.hosts").Of(fault.Denied)
	}
	return nil
}

// dial connects to allowed hosts, where their names resolve to permitted addresses.
func dial(hosts Hosts) func(ctx context.Context, network, to string) (net.Conn, error) {
	return func(ctx context.Context, network, to string) (net.Conn, error) {
		d := net.Dialer{Control: func(_, ip string, _ syscall.RawConn) error { return permit(hosts, to, ip) }}
		return d.DialContext(ctx, network, to)
	}
}

func permit(hosts Hosts, to, at string) error {
	text, _, err := net.SplitHostPort(at)
	if err != nil {
		return err
	}
	ip := net.ParseIP(text)
	if ip == nil {
		return fmt.Errorf("%s is not an address", text)
	}
	name, port, err := net.SplitHostPort(to)
	if err != nil {
		return err
	}
	for _, u := range []url.URL{{Scheme: "https", Host: name}, {Scheme: "http", Host: name}, {Scheme: "https", Host: name + ":" + port}, {Scheme: "http", Host: name + ":" + port}} {
		if h, ok := hosts.Allows(&u); ok && h.Within(ip) {
			return nil
		}
	}
	return fault.Field("url", to+" at "+text, "a host of skills.hosts that is not this host").Of(fault.Denied)
}
