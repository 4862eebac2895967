package image

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Code says what went wrong, for callers that act on it (facts/web.md §1.4 asks for errors a user can tell apart).
type Code string

// The codes an Error can have.
const (
	BadReference Code = "bad_reference" // not a valid image reference or name
	NotFound     Code = "not_found"     // the registry, the archive or this store has no such image
	NoTag        Code = "no_tag"        // the image exists, the tag or digest doesn't
	NoAccess     Code = "no_access"     // the registry refused: 401 or 403
	Unreachable  Code = "unreachable"   // the registry is down, can't be resolved, isn't trusted, or stopped answering
	RateLimited  Code = "rate_limited"  // the registry answered 429
	NoPlatform   Code = "no_platform"   // the image exists, but not for this platform: see Error.Platforms
	DiskFull     Code = "disk_full"     // the file system of the store is full, or would be
	Corrupt      Code = "corrupt"       // what came isn't what its digest says, or isn't an archive
	Unsupported  Code = "unsupported"   // a kind of image or layer that can't run here
	TooLarge     Code = "too_large"     // more bytes or entries than Options allow
	InUse        Code = "in_use"        // can't be removed now
	Failed       Code = "failed"        // anything else, such as debootstrap's own failure
)

// Error is every error of this package that isn't a cancelled context. Its text is a sentence for the user.
type Error struct {
	Code      Code
	Ref       string   // what the user asked for
	Platforms []string // with NoPlatform: those that exist
	Message   string
	Err       error // the cause, if there is one; not part of the text
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first Error in err's chain, else "".
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func fail(code Code, ref string, cause error, format string, a ...any) *Error {
	return &Error{Code: code, Ref: ref, Err: cause, Message: fmt.Sprintf(format, a...)}
}

var errPlainHTTP = errors.New("plain HTTP is not allowed for this registry")

// local explains an error of the host's own file system.
func (s *Store) local(ref string, err error, doing string) error {
	var e *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fail(DiskFull, ref, err, "the disk is full while %s: free space on the file system of %s, or remove images with "+
			"\"claude-hub image rm\"", doing, s.dir)
	case errors.Is(err, os.ErrPermission):
		return fail(Failed, ref, err, "%s failed: %v; the image store needs root", doing, err)
	}
	return fail(Failed, ref, err, "%s failed: %v", doing, err)
}

// explain turns what a registry or the way to it answered into an Error.
func (e *endpoint) explain(err error) error {
	var own *Error
	if err == nil || errors.As(err, &own) || errors.Is(err, context.Canceled) {
		return err
	}
	ref, host := e.ref, e.host()
	var terr *transport.Error
	if errors.As(err, &terr) {
		return e.explainStatus(terr, err)
	}
	var (
		dns     *net.DNSError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		wrong   x509.HostnameError
	)
	why := ""
	switch {
	case errors.As(err, &dns):
		why = fmt.Sprintf("its name can't be resolved (%s)", dns.Err)
	case errors.As(err, &unknown), errors.As(err, &invalid), errors.As(err, &wrong):
		why = "its TLS certificate isn't trusted here; add the authority's certificate to this host's trust store"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		why = "it answers plain HTTP only; list it among the plain-HTTP registries of this Runner if that is intended"
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "it refuses connections"
	case errors.Is(err, errPlainHTTP):
		why = "it wants plain HTTP; list it among the plain-HTTP registries of this Runner if that is intended"
	case errors.Is(err, errStalled), isTimeout(err):
		why = "it stopped answering"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		why = "it cut the connection"
	default:
		why = err.Error()
	}
	return fail(Unreachable, ref, err, "registry %s can't be reached for image %s: %s", host, ref, why)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func (e *endpoint) explainStatus(terr *transport.Error, cause error) error {
	ref, host := e.ref, e.host()
	has := func(c transport.ErrorCode) bool {
		for _, d := range terr.Errors {
			if d.Code == c {
				return true
			}
		}
		return false
	}
	switch {
	case terr.StatusCode == http.StatusTooManyRequests || has(transport.TooManyRequestsErrorCode):
		wait := "later"
		if e.retryAfter != "" {
			wait = "in " + e.retryAfter + " s"
		}
		return fail(RateLimited, ref, cause, "registry %s limits how often this host may pull (HTTP 429): try again %s, or log in "+
			"with \"docker login %s\" for a higher limit", host, wait, host)
	case terr.StatusCode == http.StatusUnauthorized, terr.StatusCode == http.StatusForbidden,
		has(transport.UnauthorizedErrorCode), has(transport.DeniedErrorCode):
		if e.anonymous {
			return fail(NoAccess, ref, cause, "registry %s gives no access to image %s (HTTP %d): there is no such image, or it needs "+
				"credentials. They come from the Docker config of the user that runs the Runner: \"docker login %s\"",
				host, ref, terr.StatusCode, host)
		}
		return fail(NoAccess, ref, cause, "registry %s gives no access to image %s with the credentials of this user's Docker config "+
			"(HTTP %d): they are wrong or may not read it, or there is no such image", host, ref, terr.StatusCode)
	case has(transport.NameUnknownErrorCode):
		return fail(NotFound, ref, cause, "registry %s has no image %s", host, e.repo)
	case terr.StatusCode == http.StatusNotFound:
		kind := "tag"
		if strings.HasPrefix(e.identifier, "sha256:") {
			kind = "digest"
		}
		return fail(NoTag, ref, cause, "image %s has no %s %s at registry %s", e.repo, kind, e.identifier, host)
	case terr.StatusCode >= 500:
		return fail(Unreachable, ref, cause, "registry %s answered HTTP %d for image %s: it is down or overloaded, try again later",
			host, terr.StatusCode, ref)
	}
	return fail(Failed, ref, cause, "registry %s answered HTTP %d for image %s", host, terr.StatusCode, ref)
}
