// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func TestBucketsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what   string
		name   string
		change func(*policy.Bucket)
		want   string // "": it is good
	}{
		{"a good one", "re-sults_1", func(*policy.Bucket) {}, ""},
		{"one of Amazon's", "a", func(b *policy.Bucket) { b.Endpoint = "" }, ""},
		{"one without TLS", "a", func(b *policy.Bucket) { b.Endpoint, b.Insecure = "http://s3.example", true }, ""},
		{"a name with a dot", "a.b", func(*policy.Bucket) {}, "buckets.a.b: "},
		{"no address", "a", func(b *policy.Bucket) { b.Address = "" }, "buckets.a.address"},
		{"no bucket in it", "a", func(b *policy.Bucket) { b.Address = "s3:///x" }, "buckets.a.address"},
		{"an address that ends a line", "a", func(b *policy.Bucket) { b.Address = "s3://x/y\r\nCredentials: z" }, "buckets.a.address"},
		{"an endpoint without TLS", "a", func(b *policy.Bucket) { b.Endpoint = "http://s3.example" }, "insecure = true"},
		{"an endpoint with a user", "a", func(b *policy.Bucket) { b.Endpoint = "https://me:it@s3.example" }, "without a user"},
		{"no source", "a", func(b *policy.Bucket) { b.File = "" }, "either credential or file"},
		{"two sources", "a", func(b *policy.Bucket) { b.Credential = "x" }, "either credential or file"},
		{"a relative file", "a", func(b *policy.Bucket) { b.File = "x" }, "buckets.a.file"},
		{"a path of a credential", "a", func(b *policy.Bucket) { b.File, b.Credential = "", "../x" }, "buckets.a.credential"},
	} {
		b := policy.Bucket{Address: "s3://results/all", Endpoint: "https://s3.example:9000", File: "/etc/boxd/s3"}
		c.change(&b)
		err := errors.Join(policy.ValidateBuckets(map[string]policy.Bucket{c.name: b})...)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf(`%s: err = %v, want (err == nil) == (c.want == "") and (no error or err containing %q)`,
				c.what, err, c.want)
		}
	}
}

func TestAPushTargetIsParsedAndCheckedAgainstThePolicy(t *testing.T) {
	t.Parallel()
	for push, want := range map[string][2]string{"results": {"results", ""}, "results/": {"results", ""}, "results/a/b c": {}, "results/a/b": {"results", "a/b"}, "": {}, "/a": {}, "results/../x": {}, "results/a//b": {}, "results/a\nb": {}, "results/" + strings.Repeat("a", 257): {}} {
		bucket, prefix, err := policy.ReadPush(push)
		if (err != nil) != (want[0] == "") || err == nil && (bucket != want[0] || prefix != want[1]) {
			t.Errorf(`%q: bucket = %q, prefix = %q, err = %v, want (err != nil) == (want[0] == "") and (an error or bucket == want[0] and prefix == want[1])`,
				push, bucket, prefix, err)
		}
	}
	c := policy.DefaultConfig()
	c.Buckets = map[string]policy.Bucket{"results": {}, "other": {}}
	settings, _, err := c.Merge(&policy.Request{Push: "results/a"})
	if err != nil || settings.Push != "results/a" {
		t.Fatalf(`settings.Push = %q, err = %v, want no error and settings.Push == "results/a"`, settings.Push, err)
	}
	if _, _, err := c.Merge(&policy.Request{Push: "none/a"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("an unknown bucket: err = %v, want a fault.Invalid error", err)
	}
	for _, held := range []struct {
		table   string
		buckets []string
		may     bool
	}{{"few", nil, false}, {"few", []string{"other"}, false}, {"few", []string{"results"}, true}, {"few", []string{policy.Any}, true}, {"", nil, true}} {
		h := policy.EffectivePolicy{Policy: policy.NoPolicy(), Name: held.table}
		h.Buckets = held.buckets
		if err := h.Hold(&settings, &policy.Request{}); (err == nil) != held.may || err != nil && fault.KindOf(err) != fault.Denied {
			t.Errorf("%+v: err = %v, want (err == nil) == held.may and (no error or a fault.Denied error)", held, err)
		}
	}
}
