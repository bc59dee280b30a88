// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/quantity"
)

// BucketOptions say which bucket, and how it is asked.
type BucketOptions struct {
	Address     string // s3://BUCKET/PREFIX; what is meant is below PREFIX/
	Endpoint    string // its URL; "": AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or Amazon's of the region
	Region      string // "": AWS_REGION, AWS_DEFAULT_REGION, or us-east-1
	Credentials string // a file that no other user can read; "": the environment's
	Key         []byte // the credentials themselves, as such a file has them; nil: Credentials
	Insecure    bool   // it may be asked without TLS
	Part        string // a size, of which a larger file is sent in parts; "": 64 MiB. Servers take 5 MiB to 5 GiB
	Getenv      func(string) string
	Patience    time.Duration // how long it may be silent; 0: 30 seconds
	Pause       time.Duration // the longest between two attempts; 0: 5 seconds
	roots       *x509.CertPool
}

// Flags are those of every command that asks a bucket.
func (o *BucketOptions) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.Endpoint, "endpoint", "", "`URL` S3 endpoint (default: Amazon's)")
	f.StringVar(&o.Region, "region", "", "`REGION` region of the bucket")
	f.StringVar(&o.Credentials, "credentials", "", "`FILE` credentials file, readable only by you")
	f.BoolVar(&o.Insecure, "insecure", false, "use plain HTTP instead of TLS")
}

// SendFlags are those of commands that send files there.
func (o *BucketOptions) SendFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Part, "part-size", "64MiB", "`SIZE` part size of multipart uploads, up to 5GiB; servers usually want at least 5MiB")
}

// IsBucket reports whether a source or target means a bucket.
func IsBucket(text string) bool { return strings.HasPrefix(text, s3Scheme) }

const (
	s3Scheme = "s3://"
	attempts = 5
	// parallel is how many requests are under way at once.
	parallel = 8
	// maxKey is how long S3 lets the name of an object be, in bytes.
	maxKey = 1024
)

// Bucket is a directory of one. It must be closed.
type Bucket struct {
	name, prefix string // prefix ends with / or is empty
	s3           *s3.Client
	transport    *bucketTransport
	part         int64 // bytes
	pause        time.Duration
	secrets      []string
}

// OpenBucket reads what a bucket is called and who asks. It asks nothing yet.
func OpenBucket(o *BucketOptions) (*Bucket, error) {
	b := &Bucket{pause: 5 * time.Second, part: defaultPart}
	if o.Part != "" {
		n, err := quantity.ParseSize(o.Part)
		if err == nil && (n < 1 || n > maxPart) {
			err = fmt.Errorf("must be 1 byte to %v", quantity.Size(maxPart))
		}
		if err != nil {
			return nil, fmt.Errorf("--part-size %q: %w", o.Part, err)
		}
		b.part = int64(n)
	}
	if o.Pause > 0 {
		b.pause = o.Pause
	}
	var err error
	if b.name, b.prefix, err = parseBucket(o.Address); err != nil {
		return nil, err
	}
	endpoint, err := o.endpoint()
	if err != nil {
		return nil, err
	}
	creds, err := o.who()
	if err != nil {
		return nil, err
	}
	b.secrets = []string{creds.SecretAccessKey, creds.SessionToken}
	region := firstOf(o.Region, o.Getenv("AWS_REGION"), o.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	b.transport = newBucketTransport(o.Patience, o.roots)
	options := s3.Options{
		Region: region, HTTPClient: b.transport, Logger: logging.Nop{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return creds, nil }),
		// Servers other than Amazon's fail over checksums that come after a body.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		Retryer: retry.NewStandard(func(r *retry.StandardOptions) {
			r.MaxAttempts, r.MaxBackoff = attempts, b.pause
		}),
	}
	if endpoint != "" {
		options.BaseEndpoint, options.UsePathStyle = &endpoint, true
	}
	b.s3 = s3.New(options)
	return b, nil
}

// Close ends the use of a bucket, and its connections.
func (b *Bucket) Close() { b.transport.close() }

// String is the address.
func (b *Bucket) String() string { return s3Scheme + b.name + "/" + strings.TrimSuffix(b.prefix, "/") }

func firstOf(list ...string) string {
	for _, text := range list {
		if text != "" {
			return text
		}
	}
	return ""
}

// endpoint is the server's URL. It has no credentials: they would be on the command line.
func (o *BucketOptions) endpoint() (string, error) {
	text := firstOf(o.Endpoint, o.Getenv("AWS_ENDPOINT_URL_S3"), o.Getenv("AWS_ENDPOINT_URL"))
	if text == "" {
		return "", nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("the endpoint of the bucket: want a URL such as https://s3.example:9000")
	case u.User != nil:
		return "", errors.New("the endpoint of the bucket has a user: credentials are read from the environment or with --credentials")
	case u.Scheme == "http" && !o.Insecure:
		return "", fmt.Errorf("the endpoint %s has no TLS; --insecure allows that", u.Host)
	}
	return text, nil
}

// parseBucket takes an address apart; the prefix ends with a slash, or is none.
func parseBucket(address string) (name, prefix string, err error) {
	rest, ok := strings.CutPrefix(address, s3Scheme)
	name, prefix, _ = strings.Cut(rest, "/")
	prefix = strings.Trim(prefix, "/")
	if !ok || !validBucket(name) {
		return "", "", fmt.Errorf("%.200q: must be s3://BUCKET/PREFIX, with 3 to 63 of a-z, 0-9, - and . as the bucket's name", address)
	}
	if prefix == "" {
		return name, "", nil
	}
	if err := validObjectName(prefix); err != nil {
		return "", "", fmt.Errorf("%.200q: the prefix has %w", address, err)
	}
	return name, prefix + "/", nil
}

func validBucket(name string) bool {
	if len(name) < 3 || len(name) > 63 || strings.Contains(name, "..") {
		return false
	}
	for i, c := range []byte(name) {
		word := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !word && (c != '-' && c != '.' || i == 0 || i == len(name)-1) {
			return false
		}
	}
	return true
}

// maxObjectName is how long a file system lets the name of a file be, in bytes.
const maxObjectName = 255

// validObjectName says what is wrong with the path of a file in a directory.
func validObjectName(name string) error {
	if !utf8.ValidString(name) {
		return errors.New("bytes other than UTF-8")
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f || r == '\\' {
			return errors.New("control characters or \\")
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "":
			return errors.New("a part that is empty, or an absolute path")
		case part == "." || part == "..":
			return errors.New(". or .. as a part")
		case len(part) > maxObjectName:
			return fmt.Errorf("a part of more than %d bytes", maxObjectName)
		}
	}
	return nil
}

// maxBucketText is as much of an error as one reads, in bytes.
const maxBucketText = 700

// refused says of which bucket an error is, in one line for a terminal, and what may help. No secret is in it.
func (b *Bucket) refused(about string, err error) error {
	if err == nil {
		return nil
	}
	var text string
	switch answer, ok := errors.AsType[smithy.APIError](err); {
	case ok:
		text = answer.ErrorCode() + ": " + answer.ErrorMessage()
		switch answer.ErrorCode() {
		case "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken":
			text += " (check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --credentials)"
		}
	default:
		if op, ok := errors.AsType[*smithy.OperationError](err); ok {
			text = op.Err.Error()
		} else {
			text = err.Error()
		}
	}
	for _, secret := range b.secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "…")
		}
	}
	return &refusal{Text: plain(s3Scheme+b.name+"/"+b.prefix+about+": "+text, maxBucketText), Err: err}
}
