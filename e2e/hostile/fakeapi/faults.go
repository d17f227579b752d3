package fakeapi

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// On answers by f only requests about a resource: lists and watches, or these verbs.
func On(resource string, f Fault, verbs ...string) Fault {
	if len(verbs) == 0 {
		verbs = []string{"list", "watch"}
	}
	return func(w http.ResponseWriter, r *Request) bool {
		return r.Resource == resource && slices.Contains(verbs, r.Verb) && f(w, r)
	}
}

// First answers by the first that answers.
func First(faults ...Fault) Fault {
	return func(w http.ResponseWriter, r *Request) bool {
		return slices.ContainsFunc(faults, func(f Fault) bool { return f(w, r) })
	}
}

// Answer answers with a code and a Status, in protobuf where that is taken.
func Answer(code int, s metav1.Status) Fault {
	return func(w http.ResponseWriter, r *Request) bool {
		contentType := "application/json"
		if r.Protobuf {
			contentType = "application/vnd.kubernetes.protobuf"
		}
		write(w, code, contentType, Status(r.Protobuf, s))
		return true
	}
}

// Error answers with an error as kube-apiserver does.
func Error(code int, reason metav1.StatusReason) Fault {
	return Answer(code, metav1.Status{
		Code:    int32(code),
		Reason:  reason,
		Message: "the fake API server answers " + string(reason),
	})
}

// Silence never answers.
func Silence(_ http.ResponseWriter, r *Request) bool {
	<-r.Context().Done()
	return true
}

// Slow answers after d.
func Slow(d time.Duration) Fault {
	return func(_ http.ResponseWriter, r *Request) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
		return false
	}
}

// Stall begins an answer and goes silent.
func Stall(w http.ResponseWriter, r *Request) bool {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, "{")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
	return true
}

// Abort hangs up.
func Abort(http.ResponseWriter, *Request) bool { panic(http.ErrAbortHandler) }

// Redirect sends the client somewhere else, with all that it has sent.
func Redirect(url string) Fault {
	return func(w http.ResponseWriter, r *Request) bool {
		http.Redirect(w, r.Request, url, http.StatusTemporaryRedirect)
		return true
	}
}

// NoStreaming answers no streaming list, as API servers before Kubernetes 1.32 do.
func NoStreaming(w http.ResponseWriter, r *Request) bool {
	if r.Verb != "watch" || r.URL.Query().Get("sendInitialEvents") != "true" {
		return false
	}
	Fail(w, r.Request, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	return true
}

// Compressed answers with a list of size bytes, most of them blanks, of which a thousandth is sent: it is
// compressed, whether the client takes that or not.
func Compressed(size int) Fault {
	return func(w http.ResponseWriter, _ *Request) bool {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		if blanks(z, size) {
			_ = z.Close()
		}
		return true
	}
}

// Blank answers with a list of size bytes, most of them blanks.
func Blank(size int) Fault {
	return func(w http.ResponseWriter, _ *Request) bool {
		w.Header().Set("Content-Type", "application/json")
		blanks(w, size)
		return true
	}
}

func blanks(w io.Writer, size int) bool {
	blank := []byte(strings.Repeat(" ", 1<<20))
	for range size >> 20 {
		if _, err := w.Write(blank); err != nil {
			return false
		}
	}
	_, err := io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	return err == nil
}

// crowd are the Pods of hostile lists, without an end.
var crowd = App{Namespace: "crowd", Name: "crowd", First: netip.AddrFrom4([4]byte{172, 16, 0, 1})}

// EndlessList answers each list with size bytes of Pods, whatever the limit.
func EndlessList(size int) Fault {
	return func(w http.ResponseWriter, r *Request) bool {
		w.Header().Set("Content-Type", "application/json")
		f := r.form
		f.protobuf = false
		sep := `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[`
		for i, sent := 0, 0; sent < size; i++ {
			n, err := io.WriteString(w, sep+string(f.raw(crowd.Pod(i))))
			if err != nil {
				return true
			}
			sent += n
			sep = ","
		}
		_, _ = io.WriteString(w, "]}")
		return true
	}
}

// DenseList answers each list with as many empty objects as have size bytes: in protobuf two bytes each.
func DenseList(size int) Fault {
	return func(w http.ResponseWriter, r *Request) bool {
		empty := []byte("{}")
		if r.form.protobuf {
			empty = nil
		}
		items := slices.Repeat([][]byte{empty}, size/(2+len(empty)))
		write(w, http.StatusOK, r.form.contentType(), r.form.list(metav1.ListMeta{ResourceVersion: "1"}, items))
		return true
	}
}

// DenseEvents answers each watch with a Pod of so many empty containers.
func DenseEvents(containers int) Fault {
	return func(w http.ResponseWriter, r *Request) bool {
		stream := startStream(w, r)
		p := crowd.Pod(0)
		p.Spec.Containers = nil
		spec := bytes.Repeat([]byte{0x12, 0}, containers)
		raw := binary.AppendUvarint(append(r.form.raw(p), 0x12), uint64(len(spec)))
		stream.pending = Event(true, "ADDED", envelope(r.form.version, r.form.name, append(raw, spec...)))
		stream.flush()
		<-r.Context().Done()
		return true
	}
}

// EndlessPages answers each page of a list with as many Pods as were asked for, and there is always another page.
func EndlessPages(w http.ResponseWriter, r *Request) bool {
	q := r.URL.Query()
	var from, limit int
	_, _ = fmt.Sscan(q.Get("continue"), &from)
	_, _ = fmt.Sscan(q.Get("limit"), &limit)
	limit = max(limit, 500)
	var items [][]byte
	for i := range limit {
		items = append(items, r.form.raw(crowd.Pod(from+i)))
	}
	m := metav1.ListMeta{ResourceVersion: "1", Continue: fmt.Sprint(from + limit)}
	write(w, http.StatusOK, r.form.contentType(), r.form.list(m, items))
	return true
}

// EndlessEvents answers each watch with Pods without end, each with padding bytes of labels.
func EndlessEvents(padding int) Fault {
	return func(w http.ResponseWriter, r *Request) bool {
		stream := startStream(w, r)
		pad := strings.Repeat("x", padding)
		for i := 0; r.Context().Err() == nil; i++ {
			p := crowd.Pod(i)
			p.Labels["pad"] = fmt.Sprint(i) + pad
			stream.send("ADDED", p)
		}
		return true
	}
}
