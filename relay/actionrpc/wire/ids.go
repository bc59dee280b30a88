// SPDX-License-Identifier: Apache-2.0

// The payloads of LangBot's Box actions: sessions, processes, results, and their ids.

package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
)

// Namespace returns the namespace of a Workspace, which is the same for all its generations.
func Namespace(instance, workspace string) string {
	sum := sha256.Sum256([]byte(instance + "\x00" + workspace))
	return "ws-" + hex.EncodeToString(sum[:])[:24]
}

// Prefix returns the prefix of the physical ids of all sessions of a Workspace in one generation.
func Prefix(namespace string, generation int64) string {
	return namespace + "-g" + strconv.FormatInt(generation, 10) + "-"
}

// GenerationOf returns the generation of a session of a namespace, from its physical id.
func GenerationOf(namespace, physical string) (int64, bool) {
	rest, ok := strings.CutPrefix(physical, namespace+"-g")
	digits, _, more := strings.Cut(rest, "-")
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, ok && more && err == nil && n > 0
}

// namespaceLen is the length of a namespace: ws- and the digits of its digest.
const namespaceLen = 3 + 24

// SplitID splits a physical id into its parts.
func SplitID(physical string) (namespace string, generation int64, logical string, ok bool) {
	if len(physical) < namespaceLen {
		return "", 0, "", false
	}
	namespace = physical[:namespaceLen]
	generation, ok = GenerationOf(namespace, physical)
	if !ok || !strings.HasPrefix(namespace, "ws-") {
		return "", 0, "", false
	}
	return namespace, generation, strings.TrimPrefix(physical, Prefix(namespace, generation)), true
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// PhysicalID returns the id that a session has in boxd.
func PhysicalID(prefix, logical string) (string, error) {
	logical = strings.TrimSpace(logical)
	if logical == "" {
		return "", Refusef("ValueError", "Box session_id must not be empty")
	}
	clean := strings.Trim(notInID.ReplaceAllString(logical, "-"), "-")
	if clean == "" {
		return "", Refusef("ValueError", "Box session_id must contain a valid character")
	}
	return prefix + clean, nil
}
