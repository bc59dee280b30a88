// SPDX-License-Identifier: Apache-2.0

package access

import (
	"net"
	"net/url"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// FromHere refuses requests, by their headers Origin and Host, that a web page has made a browser send: they come from this host too. A
// name that is not this host's own may resolve to it by an attacker's choice (DNS rebinding).
func FromHere(origins []string, host string) error {
	name := host
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	if ip := net.ParseIP(strings.Trim(name, "[]")); !strings.EqualFold(name, "localhost") && (ip == nil || !ip.IsLoopback()) {
		return fault.Field("Host", host, "localhost or a loopback address").Of(fault.Denied).
			WithHint("boxd accepts only local requests; a reverse proxy must set Host to localhost")
	}
	for _, origin := range origins {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, host) {
			return fault.Field("Origin", origin, "left out, or the origin of boxd itself").Of(fault.Denied)
		}
	}
	return nil
}
