package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// Pointers in a caller's structs that are only numbers to the engine are read as numbers. Once such a field is loaded
// as the pointer that C declares, it may lie on a Go stack, where the collector ends the process
// if it happens to point into Go's memory; converting it afterwards comes too late.
func TestPointersOfCallersAreReadAsNumbers(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range loadedPointers(file) {
			t.Errorf("%v: a field is loaded as a pointer and then made a number: read it through a *uintptr", set.Position(found))
		}
	}
}

// loadedPointers are the places where a field, or an element, is converted to uintptr.
func loadedPointers(file *ast.File) (found []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return true
		}
		if to, ok := call.Fun.(*ast.Ident); !ok || to.Name != "uintptr" {
			return true
		}
		switch call.Args[0].(type) {
		case *ast.SelectorExpr, *ast.IndexExpr, *ast.StarExpr:
			found = append(found, call.Pos())
		}
		return true
	})
	return found
}

func TestALoadedPointerIsFound(t *testing.T) {
	for text, want := range map[string]int{
		"uintptr(r.ptr)":   1,
		"uintptr(list[i])": 1,
		"uintptr(*p)":      1,
		"*(*uintptr)(unsafe.Pointer(&all[i].ptr))":    0,
		"mem.Addr(uintptr(r.ptr)) + uint64(all[i].n)": 1,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; var _ = "+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(loadedPointers(file)); n != want {
			t.Errorf("%s: found %d, want %d", text, n, want)
		}
	}
}
