// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// resolveTimeout limits the wait for all names together.
const resolveTimeout = 3 * time.Second

// idle lists settings that have no effect on this host, and so are probably mistakes: patterns that match nothing,
// missing directories.
func (c *Config) idle() (list []string) {
	def := defaultConfig().Image.Etc
	for _, pattern := range c.Image.Etc {
		if slices.Contains(def, pattern) {
			continue // not every host has all of these
		}
		name := strings.TrimPrefix(pattern, "!")
		if _, err := os.ReadDir("/etc/" + filepath.Dir(name)); errors.Is(err, fs.ErrPermission) {
			continue
		}
		if found, err := filepath.Glob("/etc/" + name); err == nil && len(found) == 0 {
			list = append(list, fmt.Sprintf("image.etc has %q, which matches no file in /etc", pattern))
		}
	}
	for _, r := range c.Mounts.Allow {
		if _, err := os.Stat(r.Path); err != nil && !errors.Is(err, fs.ErrPermission) && !strings.Contains(r.Path, "{") {
			list = append(list, fmt.Sprintf("mounts.allow has %q: %v", r.Path, err))
		}
	}
	for _, root := range c.Mounts.QuotaRoots {
		if _, err := os.Stat(root); err != nil && !errors.Is(err, fs.ErrPermission) { // whoever may not look there cannot say
			list = append(list, fmt.Sprintf("mounts.quota_roots has %q: %v", root, err))
		}
	}
	if c.E2B.Fleet && len(c.Fleet.Gateways) == 0 {
		list = append(list, "e2b.fleet, as fleet.gateways names no gateway")
	}
	if c.LangBot.Fleet && len(c.Fleet.Gateways) == 0 {
		list = append(list, "langbot.fleet, as fleet.gateways names no gateway")
	}
	if c.Daemon.ClientCA == "" {
		for _, name := range slices.Sorted(maps.Keys(c.Principals)) {
			if len(c.Principals[name].Certificates) > 0 {
				list = append(list, fmt.Sprintf("principals.%s.certificates: client certificates require daemon.client_ca", name))
			}
		}
	}
	return list
}

// unresolved lists the hosts in rules that have no address. It waits for name servers, at most three seconds; boxd
// itself, which has no network, cannot ask them.
func (c *Config) unresolved(ctx context.Context) []string {
	where := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Profiles)) {
		for _, rule := range c.Profiles[name].NetworkRules {
			host, _, _ := strings.Cut(rule, " ")
			if strings.ContainsAny(host, "abcdefghijklmnopqrstuvwxyz") && !strings.ContainsAny(host, "*:/") {
				where[host] = "profiles." + name + ".network_rules"
			}
		}
	}
	for name, s := range c.Secrets {
		for _, host := range s.Hosts {
			where[host] = "secrets." + name + ".hosts"
		}
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var mu sync.Mutex
	var list []string
	var requests sync.WaitGroup
	for host, key := range where {
		requests.Go(func() { // bounded by ctx
			if _, err := net.DefaultResolver.LookupHost(ctx, host); err != nil {
				mu.Lock()
				defer mu.Unlock()
				list = append(list, fmt.Sprintf("%s has %q: %v", key, host, err))
			}
		})
	}
	requests.Wait()
	slices.Sort(list)
	return list
}
