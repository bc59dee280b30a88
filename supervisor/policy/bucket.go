// SPDX-License-Identifier: Apache-2.0

// Which bucket the results of a session go to, of those that the operator has named, and whether its owner may use it.
// Credentials are not known here.

package policy

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Bucket is a table [buckets.NAME] of box.toml.
type Bucket struct {
	Address    string `toml:"address"`    // s3://BUCKET/PREFIX, prepended to what sessions ask for
	Endpoint   string `toml:"endpoint"`   // URL; "": Amazon's for the region
	Region     string `toml:"region"`     // "": us-east-1
	Insecure   bool   `toml:"insecure"`   // plain HTTP is allowed
	Credential string `toml:"credential"` // name of a systemd credential of boxd
	File       string `toml:"file"`       // or the path of a file of mode 0600 owned by root
}

// fieldPush is the field of a session that names the bucket for its results.
const fieldPush = "push"

// Bounds of what a session asks for.
const (
	maxPushPrefix = 256
	maxBuckets    = 64
)

// ValidateBuckets reports every invalid key.
func ValidateBuckets(all map[string]Bucket) (errs []error) {
	if len(all) > maxBuckets {
		errs = append(errs, fmt.Errorf("buckets: %d tables are too many, at most %d are allowed", len(all), maxBuckets))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b := all[name]
		bad := func(key string, value any, allowed string) {
			errs = append(errs, fmt.Errorf("buckets.%s.%s = %q: must be %s", name, key, value, allowed))
		}
		if !plain(name, "-") || len(name) > maxSecretName {
			errs = append(errs, fmt.Errorf("buckets.%s: the name must be at most %d letters, digits, _ and -", name, maxSecretName))
		}
		if rest, ok := strings.CutPrefix(b.Address, "s3://"); !ok || rest == "" || rest[0] == '/' || strings.ContainsFunc(rest, unprintable) {
			bad("address", b.Address, "s3://BUCKET/PREFIX")
		}
		if b.Endpoint != "" {
			u, err := url.Parse(b.Endpoint)
			switch {
			case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "":
				bad("endpoint", b.Endpoint, "a URL without a user, such as \"https://s3.example:9000\"")
			case u.Scheme == "http" && !b.Insecure:
				bad("endpoint", b.Endpoint, "https, or insecure = true")
			}
		}
		errs = append(errs, validateSource("buckets."+name, b.Credential, b.File)...)
	}
	return errs
}

func unprintable(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }

// ReadPush splits the value of push: the NAME of a table [buckets.NAME], and the prefix of the results below it.
func ReadPush(push string) (bucket, prefix string, err error) {
	bucket, prefix, _ = strings.Cut(push, "/")
	bad := len(prefix) > maxPushPrefix || !utf8.ValidString(prefix) || strings.ContainsFunc(prefix, unprintable)
	if prefix != "" {
		for part := range strings.SplitSeq(prefix, "/") {
			bad = bad || part == "" || part == "." || part == ".."
		}
	}
	if bucket == "" || bad {
		return "", "", fault.Field(fieldPush, push, fmt.Sprintf("BUCKET or BUCKET/PREFIX: the name of a table [buckets.NAME] of box.toml, and a path of at most %d bytes without spaces, . and ..", maxPushPrefix))
	}
	return bucket, prefix, nil
}

// mergePush sets where the results of a session go.
func (s *Settings) mergePush(c *Config, req *Request) error {
	if req.Push == "" {
		return nil
	}
	bucket, _, err := ReadPush(req.Push)
	if err != nil {
		return err
	}
	if _, ok := c.Buckets[bucket]; !ok {
		return fault.Field(fieldPush, req.Push, "one whose bucket is the name of a table [buckets.NAME] of box.toml")
	}
	s.Push = req.Push
	return nil
}

// holdPush refuses a bucket that the principal may not use. Without a table all are allowed.
func (h *EffectivePolicy) holdPush(s *Settings) error {
	bucket, _, _ := strings.Cut(s.Push, "/")
	if s.Push == "" || h.mayPush(bucket) {
		return nil
	}
	return h.refuse(fault.LayerPolicy, fieldPush, s.Push, "buckets", h.Buckets)
}

// mayPush reports whether a bucket is allowed. Without a table all are.
func (h *EffectivePolicy) mayPush(bucket string) bool {
	return h.Name == "" || slices.Contains(h.Buckets, bucket) || slices.Contains(h.Buckets, Any)
}

// DriveForPush is the drive that holds results until they have been pushed.
func DriveForPush(bucket string) string { return "push/" + bucket }
