"""Functions of whole trees and of backward passes."""
