// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"os"
	"strings"
)

// setting is a file below /proc/sys/net, and the value it must have.
type setting struct{ name, value string }

// configureVeth sets the sysctls of the host's end of a pair, whatever those of other links and
// the defaults are. IPv4 is forwarded there, and IPv6 if boxes have it. Some sysctls also depend
// on "all": accept_source_route, and accept_redirects on a link that forwards, are off if either
// of the two is off; send_redirects, proxy_arp and route_localnet are on if either is on, and
// "all" is the host's to set.
func configureVeth(name string, ipv6 bool) error {
	v6 := map[bool]string{true: "1", false: "0"}[ipv6]
	off := map[bool]string{true: "0", false: "1"}[ipv6]
	err := write("ipv4/conf/"+name+"/", []setting{
		{"forwarding", "1"},
		{"accept_source_route", "0"},
		{"accept_redirects", "0"},
		{"send_redirects", "0"},
		{"rp_filter", "1"}, // the host's table checks this too
		{"proxy_arp", "0"},
		{"route_localnet", "0"},
	})
	if err != nil {
		return err
	}
	return optional(write("ipv6/conf/"+name+"/", append(closed6(v6), setting{"disable_ipv6", off}, setting{"proxy_ndp", "0"})))
}

// reconcileBox sets the sysctls of the box's end, in its network namespace. The kernel has copied
// them from the host, which forwards.
func reconcileBox() error {
	const all, end, all6, end6 = "ipv4/conf/all/", "ipv4/conf/" + boxEnd + "/", "ipv6/conf/all/", "ipv6/conf/" + boxEnd + "/"
	hosts := []setting{{"accept_source_route", "0"}, {"accept_redirects", "0"}, {"route_localnet", "0"}, {"proxy_arp", "0"}}
	err := write(all, append([]setting{{"forwarding", "0"}}, hosts...)) // first, as it sets others
	if err == nil {
		err = write(end, append(hosts, setting{"rp_filter", "1"}))
	}
	if err != nil {
		return err
	}
	if err := optional(write(all6, []setting{{"forwarding", "0"}})); err != nil {
		return err
	}
	return optional(write(end6, closed6("0")))
}

// closed6 returns the IPv6 sysctls that both ends have. A negative accept_source_route accepts no
// routing header at all; the lower one of the link's and that of "all" applies.
func closed6(forwarding string) []setting {
	return []setting{
		{"forwarding", forwarding},
		{"accept_ra", "0"},
		{"autoconf", "0"},
		{"accept_redirects", "0"},
		{"accept_source_route", "-1"},
		{"seg6_enabled", "0"},
	}
}

// optional ignores that the kernel lacks something it may lack: IPv6, or a part of it.
func optional(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// write writes those files of a directory below /proc/sys/net that do not have the value yet. If
// one is missing, it still writes the others.
func write(dir string, list []setting) (missing error) {
	for _, s := range list {
		err := put("/proc/sys/net/"+dir+s.name, s.value)
		if errors.Is(err, os.ErrNotExist) {
			missing = err
			continue
		}
		if err != nil {
			return err
		}
	}
	return missing
}

func put(path, value string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	now := make([]byte, 16)
	if n, err := f.Read(now); err == nil && strings.TrimSpace(string(now[:n])) == value {
		return nil
	}
	_, err = f.WriteAt([]byte(value), 0)
	return err
}
