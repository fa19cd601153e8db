# Stands in for the TorchConfig.cmake of a LibTorch folder, STUB_TORCH. The one in the wheel (cases torch_config_*) wants a CUDA
# toolkit and every file of the wheel, of which a build for CPUs unpacks a part; this one defines what that one defines, under the same names,
# and stops like it when somebody else has taken them.
if(NOT TARGET torch)
  foreach(name c10 torch_cpu)
    if(TARGET ${name})
      message(FATAL_ERROR "Some (but not all) targets in this export set were already defined: ${name}")
    endif()
    add_library(${name} SHARED IMPORTED)
    set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${STUB_TORCH}/lib/lib${name}.so"
                          INTERFACE_INCLUDE_DIRECTORIES "${STUB_TORCH}/include")
  endforeach()
  set_target_properties(torch_cpu PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE" INTERFACE_LINK_LIBRARIES c10)
  set(TORCH_INCLUDE_DIRS "${STUB_TORCH}/include" "${STUB_TORCH}/include/torch/csrc/api/include")
  add_library(torch INTERFACE IMPORTED)
  set_target_properties(torch PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
                        INTERFACE_LINK_LIBRARIES torch_cpu INTERFACE_COMPILE_FEATURES cxx_std_20
                        INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
endif()
set(TORCH_LIBRARIES torch)
set(Torch_FOUND TRUE)
